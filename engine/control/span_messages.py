"""The messages of the span instrument: GET /v1/spans and GET /v1/trace.

Like protocol.py: the console imports it, so it stands on msgspec alone. Times are seconds unless a line says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .protocol import NA, Detail, Value, Verdict

Kind = Literal["decode", "prompt", "mixed"]


class SpansQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/spans."""

    window: Annotated[float, Meta(gt=0, le=900)] = 10.0  # seconds


class TraceQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/trace."""

    seconds: Annotated[float, Meta(gt=0, le=900)] = 10.0  # back from now


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: numbers of two builds are not to be mixed in silence."""

    version: str
    revision: str
    dirty: bool | NA  # files differed from the revision's
    model: str
    dtype: str
    device: str
    profile: str
    flags: dict[str, Value]  # those whose value is not the profile's


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether device events time execution: events around a kernel of known length, and around an empty launch."""

    known: float
    execution: float
    launch: float
    ratio: float  # execution / launch
    passed: bool


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the numbers beside it can be trusted, over the same steps as they are."""

    verdict: Verdict  # none: no steps
    failures: tuple[str, ...]  # why not, each in words
    self_test: SelfTest | None
    no_self_test: NA | None  # why there is none
    unresolved_device_spans: int | NA  # without a time; their steps are left out of the device channel
    misnested_spans: int
    lost_spans: int  # calls that found no room to be recorded
    violations: dict[str, int]  # what cannot be, by name, and how often it was


class SpanRow(msgspec.Struct, frozen=True, kw_only=True):
    """One span, added up over all steps of its kind in the window. Its parent is the row before it that is one less
    deep."""

    path: str  # step/decode/pipeline.step/model_forward
    name: str
    depth: int  # 0: the step
    calls: int
    wall: float
    host_self: float  # wall less what is spent in spans under it and less sync
    sync: float | NA  # the host waited for the device
    device: float | NA  # on the device's stream, over `device_steps` steps


class KindSpans(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one kind: all rows decode, all rows prompt, or mixed. A mixed step cannot be divided: its products
    run over all tokens at once."""

    kind: Kind
    steps: int
    rows: int  # of all these steps
    tokens: int  # query tokens of all these steps
    device_steps: int  # steps whose device spans all have a time
    spans: tuple[SpanRow, ...]  # in the order of the tree


class Marginal(msgspec.Struct, frozen=True, kw_only=True):
    """What one more sequence adds to one span of a decode step."""

    path: str
    per_row: float
    per_row_error: float  # standard error


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """A decode step's wall time = base + per_row x rows, by least squares over the window's decode steps."""

    steps: int
    rows: float  # mean
    base: float
    base_error: float  # standard error
    per_row: float
    per_row_error: float
    r2: float
    spans: tuple[Marginal, ...]


class SpanReport(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/spans: where a step's time goes, over the last `seconds`."""

    build: Build
    on: bool  # profiling is on now; when not, these are steps of before
    detail: Detail
    seconds: float
    kinds: tuple[KindSpans, ...]  # those with steps in the window
    law: Law | None
    no_law: NA | None  # why there is none
    proof: Proof
    own: float  # what the profiler itself took between these steps, beyond what it takes inside of them
    not_timed: dict[str, str]  # spans that the tree does not have here, and why


class TraceStep(msgspec.Struct, frozen=True):
    """One step of a trace."""

    number: int
    kind: Kind
    rows: int
    tokens: int
    first: int  # of the trace's spans
    count: int


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/trace: single calls, newest steps last, as columns of one length. Times in ns since `began`.

    A step's first span is the step; each other one stands after the one that it was made in.
    """

    build: Build
    on: bool
    detail: Detail
    began: float  # time.time() of time 0
    seconds: float  # from the first step's beginning to the last one's end
    cut: bool  # older steps of what was asked for are no longer kept
    paths: tuple[str, ...]
    steps: tuple[TraceStep, ...]
    path: list[int]  # index into `paths`
    start: list[int]
    wall: list[int]
    device_start: list[int | None] | NA
    device_wall: list[int | None] | NA
    proof: Proof
