"""Turns recording on and off, and answers what was recorded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from ...kernels.operations import Stamps
from ..control.protocol import NA, Instruments
from ..control.span_messages import Build, Proof, SpanReport, Trace
from . import report
from .device import Device
from .recording import Recording
from .sites import Detail, Site

log = logging.getLogger("arc.profiler")

Seconds = dict[tuple[str, str], float]  # span and channel -> seconds since the engine's start


class Profiler:
    """`configure` and `flush` are the engine thread's, between two steps; the rest is for any thread."""

    def __init__(
        self,
        sites: Callable[[], Sequence[Site]],
        *,
        stamps: Stamps | None,
        device: Device | NA,
        not_timed: Mapping[str, str],
        publish: Callable[[Seconds], None] = lambda _seconds: None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`sites` is asked each time that profiling is turned on. `device`: NA says why there is no device channel.

        `not_timed`: spans that this engine does not have, and why. `publish` gets the cumulative times when they rise.
        """
        self.on = False
        self.detail = Detail.LAYER
        self._sites = sites
        self._stamps = stamps
        self._device = device
        self._not_timed = dict(not_timed)
        self._publish = publish
        self._clock = clock
        self._recording: Recording | None = None  # also after it was turned off, until another one begins
        self._before: Seconds = {}  # of the recordings before this one
        self._failure: str | None = None

    def configure(self, on: bool, detail: Detail) -> None:
        """Between two steps. Raises SiteError or what the device raises; then profiling is off."""
        if (on, detail) == (self.on, self.detail):
            return
        if self.on:
            assert self._recording is not None
            self._recording.take_away()
            self.on = False
            self.flush()
        self.detail = detail
        if not on:
            return
        before = {} if self._recording is None else self._seconds(self._recording)
        device = None if isinstance(self._device, NA) else self._device
        recording = Recording(
            self._sites(), detail,
            stamps=self._stamps, device=device, clock=self._clock, failed=self._failed, collected=self._publish_seconds,
        )  # fmt: skip
        recording.put()
        self._recording, self._before, self._failure = recording, before, None
        self.on = True

    def flush(self) -> None:
        """Bring the sums up to the last step."""
        if self._recording is not None:
            self._recording.collect()
            self._publish_seconds()

    def report(self, build: Build, window: float) -> SpanReport | None:
        """None: profiling has never been on."""
        recording = self._recording
        if recording is None:
            return None
        return report.spans(
            recording, recording.windows.last(window, self._clock()), build,
            on=self.on, channel=self._channel, not_timed=self._not_timed, failure=self._failure,
        )  # fmt: skip

    def trace(self, build: Build, seconds: float) -> Trace | None:
        recording = self._recording
        if recording is None:
            return None
        return report.trace(
            recording, build, seconds,
            now=self._clock(), on=self.on, channel=self._channel, failure=self._failure,
        )  # fmt: skip

    def instruments(self) -> Instruments:
        recording = self._recording
        detail = report.DETAILS[self.detail]
        if recording is None or not self.on:
            why = NA("profile.enabled is off, so no span is known to be open")
            text = f"off: {self._failure}" if self._failure else "off"
            verdict = "fail" if self._failure else "none"
            return Instruments(spans=False, detail=detail, verdict=verdict, text=text, open_span=why)
        proof = self._proof(recording)
        return Instruments(
            spans=True,
            detail=detail,
            verdict=proof.verdict,
            text=report.in_words(proof),
            open_span=recording.tape.open_path() or NA("no step is open"),
        )

    def _proof(self, recording: Recording) -> Proof:
        return report.proof(recording.total, recording.tested, self._channel, self._failure)

    @property
    def _channel(self) -> NA | None:
        """Why there is no device channel; None: there is one."""
        return self._device if isinstance(self._device, NA) else None

    def _failed(self, error: Exception) -> None:
        """An instrument that breaks takes itself away: the step that it looked at goes on."""
        log.exception("the profiler failed and is off", exc_info=error)
        assert self._recording is not None
        self._recording.take_away()
        self.on = False
        self._failure = f"the profiler failed: {error!r}"

    def _publish_seconds(self) -> None:
        if self._recording is not None:
            self._publish(self._seconds(self._recording))

    def _seconds(self, recording: Recording) -> Seconds:
        seconds = dict(self._before)
        for key, value in report.seconds(recording, self._channel).items():
            seconds[key] = seconds.get(key, 0.0) + value
        return seconds
