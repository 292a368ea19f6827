"""Time on the accelerator's own stream, from events that are read later and never waited for.

Everything here works over small protocols, so that it is tested with a simulated device; cuda.py has the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

NO_EVENT = -1  # one was asked for, and all were out
NOT_ASKED = -2  # a span of the host alone

RING = 1 << 14  # events; a step of 27 layers at detail `op` takes some 700
_RENEW = (
    2_000_000_000  # ns between anchors: an event's distance is float32 milliseconds, exact to 1 us up to 10 s
)
_BUSY = 0.002  # seconds of the self-test's kernel
_LEAST_RATIO = 5.0  # what events around real work must read, over events around an empty launch
_MOST_OFF = 3.0  # times: the kernel's length is known in cycles, and a clock rate moves


class DeviceEvent(Protocol):
    """As torch.cuda.Event with timing."""

    def record(self) -> None:
        """Put it into the stream, to be passed when what is before it is done."""
        ...

    def query(self) -> bool:
        """Whether it was passed. Never blocks."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this one to `end_event`, which is one of the same device; both were passed."""
        ...


class Device(Protocol):
    def event(self) -> DeviceEvent: ...

    def busy(self, seconds: float) -> None:
        """Launch a kernel that runs about so long; 0 is an empty launch."""
        ...

    def synchronize(self) -> None:
        """Wait for the device. Only when profiling is turned on."""
        ...


@dataclass(frozen=True, slots=True)
class SelfTested:
    """Whether events time execution and not launches. Seconds."""

    known: float  # how long the kernel was made to run
    execution: float  # what events around it read
    launch: float  # what events around an empty launch read

    @property
    def ratio(self) -> float:
        return self.execution / self.launch if self.launch > 0 else float("inf")

    @property
    def passed(self) -> bool:
        right = self.known / _MOST_OFF <= self.execution <= self.known * _MOST_OFF
        return right and self.ratio >= _LEAST_RATIO


def self_test(device: Device) -> SelfTested:
    """Waits for the device: a few milliseconds, once, when profiling is turned on."""
    device.busy(0.0)  # the first launch of a kernel loads it
    events = [device.event() for _ in range(4)]
    device.synchronize()
    events[0].record()
    device.busy(0.0)
    events[1].record()
    events[2].record()
    device.busy(_BUSY)
    events[3].record()
    device.synchronize()
    launch, execution = (events[n].elapsed_time(events[n + 1]) / 1e3 for n in (0, 2))
    return SelfTested(_BUSY, execution, launch)


class EventRing:
    """Events in a ring. A ticket is the number of a recording; it is good until `release` has passed it.

    Tickets are released in order, and while all events are out a recording gets NO_EVENT: nothing waits for one.
    """

    def __init__(self, device: Device, capacity: int = RING) -> None:
        self._device = device
        self._events: list[DeviceEvent] = []  # made as they are first needed
        self._capacity = capacity
        self._next = 0
        self._released = 0

    @property
    def crowded(self) -> bool:
        """So many events are out that it is time to read some."""
        return 4 * (self._next - self._released) > self._capacity

    def record(self) -> int:
        ticket = self._next
        if ticket - self._released >= self._capacity:
            return NO_EVENT
        events = self._events
        if ticket < self._capacity and ticket == len(events):
            events.append(self._device.event())
        events[ticket % self._capacity].record()
        self._next = ticket + 1
        return ticket

    def done(self, ticket: int) -> bool:
        return self.of(ticket).query()

    def of(self, ticket: int) -> DeviceEvent:
        assert self._released <= ticket < self._next, "a ticket that was given back"
        return self._events[ticket % self._capacity]

    def release(self, until: int) -> None:
        """All tickets before `until`."""
        self._released = max(self._released, until)

    def rewind(self, ticket: int) -> None:
        """The recordings from `ticket` on are of nothing that is kept."""
        self._next = ticket


class Anchor:
    """Puts device time on the host's clock: one event whose moment there is known, renewed along the stream.

    It costs one wait, when profiling is turned on. Each later anchor is placed by its distance from the one before.
    """

    def __init__(self, device: Device, clock: Callable[[], int]) -> None:
        self._device = device
        self._clock = clock
        self._event = device.event()
        device.synchronize()
        self._event.record()
        device.synchronize()
        self._at = self._asked = clock()
        self._coming: DeviceEvent | None = None

    def place(self, event: DeviceEvent) -> int:
        """The moment of an event that was passed, in ns on the host's clock."""
        return self._at + round(self._event.elapsed_time(event) * 1e6)

    def renew(self) -> None:
        """Called now and then; never waits."""
        if self._coming is not None:
            if self._coming.query():
                self._at, self._event, self._coming = self.place(self._coming), self._coming, None
        elif self._clock() - self._asked > _RENEW:
            self._asked = self._clock()
            self._coming = self._device.event()
            self._coming.record()
