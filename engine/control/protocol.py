"""The messages of the control socket, both ways: what docs/control.md documents and GET /v1/schema is generated from.

The console imports this module, so it stands on msgspec and the step record alone: no torch, no aiohttp. Within one
PROTOCOL number fields are only added, each with a default; readers ignore fields that they do not know. Requests are
read strictly: an unknown key is an error, never dropped in silence.

Units: times of day are time.time() seconds, durations and ages seconds, memory bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..telemetry.records import StepRecord

PROTOCOL = 1
ROLE_HEADER = "Arc-Role"  # "viewer" lowers this connection's role for good

Value = bool | int | float | str
Role = Literal["viewer", "operator"]
State = Literal["serving", "paused", "draining", "stalled"]
Detail = Literal["step", "layer", "op"]  # of the spans that are recorded
Verdict = Literal["pass", "fail", "none"]  # of an instrument on itself; none: nothing was measured yet

# Bounds of what may be sent. Text is shown on terminals: it has no control characters.
_ONE_LINE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$(?!\n)"  # a `$` alone lets a last line break pass
LINE, WORDS = rf"^{_ONE_LINE}", rf"^(?=.*\S){_ONE_LINE}"
Line = Annotated[str, Meta(max_length=500, pattern=LINE)]
Words = Annotated[str, Meta(max_length=500, pattern=WORDS)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
FlagName = Annotated[str, Meta(max_length=100)]
Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]
Version = Annotated[int, Meta(ge=0)]


class NA(msgspec.Struct, frozen=True):
    """Not available, and why. Never a zero: a zero is a measurement."""

    na: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is not 2xx."""

    error: str  # a stable word for programs, such as "stale version"
    message: str  # what is wrong, for people
    hint: str = ""  # what to do next
    refused: dict[str, Refusal] = {}  # flag name -> why, when flags were refused; nothing was applied
    version: int | None = None  # the settings' version, when that was the trouble


class Refusal(msgspec.Struct, frozen=True):
    """Why one flag was not changed."""

    reason: str  # a stable word: unknown, type, bounds, choice, form, restart, conflict
    message: str


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/hello: who answers, and what this connection may do."""

    protocol: int
    name: str  # the engine's name on this machine
    version: str
    revision: str
    pid: int
    model: str
    model_path: str
    model_type: str
    parameters: int
    dtype: str
    device: str
    max_model_len: int
    page_size: int  # tokens
    pages: int
    profile: str
    started: float
    config_version: int
    role: Role  # of this connection
    uid: int  # of this connection's other end, as the kernel says
    capabilities: tuple[str, ...]
    recorder: str | NA  # the flight recorder's file
    api: str | NA = NA("this engine does not say")  # the HTTP API's base, such as http://127.0.0.1:8000


# -- queries: what may stand after the `?` ------------------------------------------------------------------------


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SnapshotQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/snapshot."""

    window: Annotated[float, Meta(gt=0, le=900)] = 10.0  # seconds that `window` counts over
    sequences: bool = False  # with the table, as of GET /v1/sequences without a limit


class SequencesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/sequences."""

    limit: Annotated[int, Meta(ge=1, le=10_000_000)] | None = (
        None  # list so many at most, the table's first; None: all
    )


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/history. `step` 1 goes back an hour, 0.1 a minute."""

    since: Annotated[float, Meta(ge=0)] = 0.0  # samples that ended after it
    step: Literal["1", "0.1"] = "1"


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/events."""

    since: Annotated[int, Meta(ge=0)] = 0  # the number of the last event seen
    limit: Annotated[int, Meta(ge=1, le=4096)] = 1000


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of GET /v1/stream. The header Last-Event-ID goes before `since`."""

    hz: Annotated[float, Meta(ge=0, le=20)] = 4.0  # snapshots a second; 0: events alone
    window: Annotated[float, Meta(gt=0, le=900)] = 10.0
    sequences: bool = False
    since: Annotated[int, Meta(ge=0)] | None = None  # as Last-Event-ID; None: events from now on


class DeleteQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of DELETE /v1/flags/<name>."""

    reason: Line = ""
    expect_version: Version | None = None


# -- what runs ----------------------------------------------------------------------------------------------------


class SequenceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sequence as it stood at a step border. Its text is never shown."""

    id: str
    number: int
    status: str
    wait_reason: str | None  # None when it was in the step
    priority: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    computed: int  # tokens whose KV is in the cache
    cached_prefix: int  # prompt tokens that came from the prefix cache
    pages: int
    preemptions: int
    age: float  # since it arrived
    queued: float | None  # from arrival to admission; None while it never was admitted
    first_token: float | None  # from arrival to the first token; None before it
    since_token: float | None  # since its last token; None before the first
    drafted: int = 0  # drafts verified
    accepted: int = 0  # of these, what the model itself chose


class Sequences(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/sequences."""

    step: int  # the last finished step when it was done
    age: float  # since the last row was written: those that run, as far as 256 of them go
    took: float  # from the first row to the last: long lines are written down over several steps
    total: int  # sequences that held pages or waited when it was done, listed here or not
    listed: int  # fewer than `total`: `limit`, some came while it was written, or no step border came in time
    sequences: tuple[SequenceView, ...]  # those that run, then those that wait, in the line's order


class Pages(msgspec.Struct, frozen=True):
    """KV pages at one step border: total = used + cached + free."""

    total: int
    used: int  # held by running sequences
    cached: int  # held by the prefix cache alone
    free: int


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts of the model's prediction layer, counted since the start: readers take differences over their window."""

    depth: int | NA  # spec.depth at that border; NA where the checkpoint has nothing to draft with
    rows: int = 0  # rows whose drafts were verified; such a row brings one token besides the accepted ones
    drafted: tuple[int, ...] = ()  # drafts verified, by their place in a row, the first at 0
    accepted: tuple[int, ...] = ()  # of these, what the model itself chose
    undrafted: dict[str, int] = {}  # rows that could not speculate in a step, by why


class Percentiles(msgspec.Struct, frozen=True):
    """Read off merged histogram buckets, never averaged. NA where the value lies past the last bucket's bound."""

    count: int
    p50: float | NA
    p95: float | NA
    p99: float | NA

    @classmethod
    def of(cls, counts: Sequence[int], bounds: Sequence[float]) -> Percentiles:
        """By linear interpolation inside the bucket. `counts` has one more than `bounds`: what lies past the last."""
        total = sum(counts)
        assert total > 0 and len(counts) == len(bounds) + 1
        return cls(total, *(_percentile(counts, bounds, total * share) for share in (0.5, 0.95, 0.99)))


def _percentile(counts: Sequence[int], bounds: Sequence[float], rank: float) -> float | NA:
    below = 0
    for index, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * (rank - below) / count
        below += count
    return NA(f"above {bounds[-1]:g} s, the last bucket's bound")


class AllocatorCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator did in an interval, and what it held at the end. Taken = hits + misses."""

    hits: int  # taken, and one was free
    misses: int  # taken, and memory had to be had from the system
    allocated: int  # buffers had from the system
    freed: int  # buffers given back to the system, whatever for
    evictions: int  # of those, to stay under the cap
    bypassed: int  # asked for and not taken; GET /v1/allocator says why
    held: int  # bytes, at the end
    cap: int | None  # bytes, at the end; None: unbounded


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in `seconds`. Counts, so that a reader forms its own rates and leaves out those without events."""

    seconds: float
    steps: int
    rows: int  # rows of all forwards; rows / steps is the mean effective batch
    admitted: int  # sequences that held KV, summed over the steps as rows are
    step_seconds: float  # wall time of those steps
    forward_seconds: float
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int  # tokens looked up
    prefix_hits: int  # tokens found
    preemptions: int
    recomputed_tokens: int
    faults: int
    finished: dict[str, int]  # by finish reason
    latency: dict[str, Percentiles]  # first_token, between_tokens, queue, end_to_end; absent without events
    draft_rows: int = 0  # rows whose drafts were verified
    drafted: tuple[int, ...] = ()  # drafts verified, by their place in a row
    accepted: tuple[int, ...] = ()
    allocator: AllocatorCounts | None = None  # None: it is off


class Instruments(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the spans are recorded, and whether what they say can be trusted."""

    spans: bool  # profile.enabled
    detail: Detail
    verdict: Verdict  # over all steps since profiling was last turned on
    text: str  # the same in a few words
    open_span: str | NA  # what the step under way is in


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/snapshot and the stream's `snapshot`. The gauges are of one step border, `age` seconds ago."""

    time: float
    uptime: float
    state: State
    age: float  # since the engine published the gauges
    step: int  # the last finished step
    step_age: float | None  # since it ended; None when none ran yet
    step_open: float | None  # a step is under way for so long; None between steps
    running: int
    waiting: int
    waiting_by_reason: dict[str, int]
    effective_batch: int  # rows of the last forward
    pages: Pages
    window: Interval  # the last seconds: `window.seconds` says how many
    life: Interval  # since the start, or since the counters were last reset
    last_step: StepRecord | None
    config_version: int
    changed: tuple[str, ...]  # flags whose value is not the profile's
    last_event: int
    sequences: tuple[SequenceView, ...] | None = None  # when asked for by sequences=true
    speculation: Speculation = Speculation(depth=NA("not reported by this engine"))
    instruments: Instruments | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of history: its gauges at the end, its counts, and its latencies as buckets that add up."""

    time: float  # when it ended
    seconds: float
    running: int
    waiting: int
    pages_used: int
    pages_cached: int
    pages_free: int
    steps: int
    rows: int
    admitted: int
    step_seconds: float
    forward_seconds: float
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    finished: int
    faults: int
    buckets: dict[
        str, dict[int, int]
    ]  # latency -> index into History.bounds -> count; empty ones are left out
    draft_rows: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    allocator: AllocatorCounts | None = None  # None: it was off


class History(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/history: what came before this console was attached, oldest first."""

    step: float  # 1.0 for the last hour, 0.1 for the last minute
    bounds: tuple[float, ...]  # upper bounds of the buckets, seconds; one bucket more lies past the last
    samples: tuple[Sample, ...]
    marks: tuple[Event, ...]  # named moments in the time that the samples cover


# -- events -------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, numbered from 1 without holes."""

    number: int
    time: float
    kind: str
    text: str  # one line for people
    step: int | None = None
    uid: int | None = None
    pid: int | None = None
    data: dict[str, Any] = {}


class Gap(msgspec.Struct, frozen=True):
    """Events that can no longer be had: the reader was too slow or came too late."""

    dropped: int
    first: int  # numbers first..last
    last: int


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/events: those after `since`, oldest first."""

    last: int  # ask again with since=last
    gap: Gap | None
    events: tuple[Event, ...]


# -- flags --------------------------------------------------------------------------------------------------------


class OriginView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a value came from."""

    layer: str  # default, profile, arc.toml, environment, command line, runtime
    where: str
    uid: int | None = None
    pid: int | None = None
    reason: str | None = None
    step: int | None = None
    time: float | None = None


class FlagView(msgspec.Struct, frozen=True, kw_only=True):
    """One flag: its declaration, its value and where that came from."""

    name: str
    value: Value
    default: Value
    origin: OriginView
    changed: bool  # the value is not the profile's
    kind: str
    unit: str
    allowed: str  # the bounds or choices, for people
    low: int | float | None
    high: int | float | None
    choices: tuple[str | int, ...]
    words: tuple[str, ...]
    reach: str  # live, or restart
    meaning: str
    danger: str | None
    until: float | None  # a time-limited change ends then, and the value goes back to `then`
    then: Value | None


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/flags."""

    version: int
    flags: tuple[FlagView, ...]


class LayerView(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer says of one flag."""

    value: Value
    origin: OriginView


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The effective value and every layer that sets it, lowest first."""

    value: Value
    layers: tuple[LayerView, ...]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/config."""

    version: int
    profile: str
    profile_from: OriginView
    folder: str  # the folder the engine was started in, where its arc.toml is
    file_sha256: str | None  # of the arc.toml that the engine read at its start, in hex; null: there was none
    values: dict[str, ConfigEntry]


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs one operation of the model, and why those that were asked before do not."""

    operation: str
    backend: str
    refused: dict[str, str]  # backend -> reason


class Graphs(msgspec.Struct, frozen=True, kw_only=True):
    """Decode steps as replays of captured graphs, since the engine's start."""

    captured: tuple[int, ...]  # the numbers of rows that graphs are there for, of one query each
    replays: int | NA  # steps; NA: why this engine replays nothing
    plain: dict[str, int]  # steps that were no replay, by reason
    refused: dict[str, str]  # a size ("4 rows", "4 rows of 3 queries") -> why it could not be captured
    verifying: dict[
        str, tuple[int, ...]
    ] = {}  # most queries of a row, with its drafts -> numbers of such rows


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/kernels."""

    device: str
    dtype: str
    operations: tuple[KernelLine, ...]
    graphs: Graphs


class FlagsPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PATCH /v1/flags: all of the changes or none. A value may be text as the command line takes it ("off", "64")."""

    changes: Annotated[dict[FlagName, Value], Meta(min_length=1, max_length=100)]
    reason: Line = ""
    expect_version: Version | None = None  # refuse with 409 unless the settings still have this version
    ttl: Seconds | None = None  # after which the engine itself puts the old values back
    dry_run: bool = False  # say what would happen and do nothing


class Change(msgspec.Struct, frozen=True):
    """One flag's effective value before and after."""

    old: Value
    new: Value


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to PATCH /v1/flags and DELETE /v1/flags/<name>."""

    step: int  # the first step that runs with it; of a dry run: that would
    version: int
    changes: dict[str, Change]
    drains: tuple[str, ...]  # what has to end before a lowered cap is met, in words
    until: float | None  # when the old values come back
    dry_run: bool = False


# -- memory -------------------------------------------------------------------------------------------------------


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """One component's memory."""

    component: str
    place: str  # "host", or the device's name
    bytes: int | NA
    reserved: bool = False  # on the host it is resident only as far as it was ever used


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/memory. `rest` is the process beyond its named parts: interpreter, libraries, buffers, and what is
    used of a part that is reserved on the host."""

    resident: int | NA  # of the process
    peak: int | NA
    parts: tuple[MemoryPart, ...]


# -- actions ------------------------------------------------------------------------------------------------------


class ReasonBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/actions/{pause,resume,flush,trim,reset}."""

    reason: Line = ""


class DrainBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/actions/drain: take no new work, let the rest end, then stop. The deadline cancels what is left."""

    deadline: Seconds | None = None  # seconds from now; None: as long as it takes
    reason: Line = ""


class DrainStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a drain, at once."""

    step: int
    running: int
    waiting: int
    until: float | None


class CancelBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/actions/cancel: these ids, or all."""

    ids: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    all: bool = False
    reason: Line = ""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer when it is done."""

    step: int
    ended: tuple[str, ...]
    unknown: tuple[str, ...]  # ids that the engine does not have: never seen, or ended already
    left: int  # sequences that still run or wait


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """What the flush of the prefix cache could drop, and what it could not and why."""

    step: int
    dropped: int  # pages
    kept: int
    why_kept: str


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator gave back."""

    step: int
    freed: int  # bytes
    held: int
    cap: int | None = None  # bytes, derived anew when alloc.cap_mib is auto; None: unbounded


class CountersReset(msgspec.Struct, frozen=True):
    """The shown counters begin anew from here. Prometheus counters never do."""

    time: float


class MarkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/actions/mark: a named line in the history."""

    text: Words


class Marked(msgspec.Struct, frozen=True):
    """The mark as the event that it became."""

    event: Event


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """What one of the process's threads was doing, innermost call last."""

    name: str
    stack: tuple[str, ...]


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/actions/dump: everything known, in one file to attach to a report."""

    time: float
    hello: Hello
    snapshot: Snapshot
    sequences: Sequences
    config: Config
    memory: Memory
    history: History
    events: Events
    steps: tuple[StepRecord, ...]
    threads: tuple[ThreadStack, ...]


class Heartbeat(msgspec.Struct, frozen=True):
    """The stream's `heartbeat`: nothing else was due."""

    time: float


class Bye(msgspec.Struct, frozen=True):
    """The stream's last message, `bye`, and why it ends."""

    reason: str
