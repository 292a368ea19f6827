"""A clock, a device and a small model whose times are known exactly, so a report can be checked to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from arc.engine.control.protocol import NA
from arc.engine.control.span_messages import Build, KindSpans, SpanReport, SpanRow
from arc.engine.profiler.device import Device
from arc.engine.profiler.profiler import Profiler
from arc.engine.profiler.sites import Detail, Role, Site, StepFacts, StepKind
from arc.kernels.operations import Section, Stamps

US = 1_000  # ns
NO_DEVICE = NA("simulated without a device")
BUILD = Build(
    version="1", revision="abc", dirty=False, model="toy", dtype="float32", device="cpu", profile="default", flags={}
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 10_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_(self, ns: int) -> None:
        self.now += ns


class Event:
    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.at: int | None = None

    def record(self) -> None:
        self.at = self._device.free_at()

    def query(self) -> bool:
        assert self.at is not None
        return self.at + self._device.lag <= self._device.clock.now

    def elapsed_time(self, end_event: Any) -> float:
        assert self.at is not None and end_event.at is not None
        assert self.query() and end_event.query(), "read before it was passed"
        return (end_event.at - self.at) / 1e6


class SimulatedDevice:
    """One stream: work is done in order, and begins when it is launched or when what is before it is done."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lag = 0  # ns by which a query learns late that an event was passed
        self.launch = 2 * US  # what an empty launch takes on the stream
        self.times_launches = False  # the fault that the self-test is for: events do not see execution
        self.waited = 0  # how often somebody waited for the device
        self.made = 0
        self._done = 0

    def free_at(self) -> int:
        return max(self._done, self.clock.now)

    def work(self, ns: int) -> None:
        self._done = self.free_at() + (self.launch if self.times_launches else ns)

    # -- the profiler's protocol

    def event(self) -> Event:
        self.made += 1
        return Event(self)

    def busy(self, seconds: float) -> None:
        self.work(max(self.launch, round(seconds * 1e9)))

    def synchronize(self) -> None:
        self.waited += 1
        self.clock.now = self.free_at() + self.lag


class Layer:
    def __init__(self, model: Model, host: int, device: int) -> None:
        self.model, self.host, self.device = model, host, device

    def forward(self) -> None:
        self.op()
        self.model.spend(self.host, self.device)

    def op(self) -> None:
        self.model.spend(self.host, self.device)


class Model:
    """`layers` layers; each takes `host` on the host and launches `device` on the device, twice."""

    def __init__(
        self, clock: Clock, device: SimulatedDevice | None, layers: int, host: int, work: int
    ) -> None:
        self.clock, self.device = clock, device
        self.layers = [Layer(self, host, work) for _ in range(layers)]
        self.stamped: list[Callable[[], None]] = []
        self.skip = 0  # layers that are left out

    def spend(self, host: int, device: int = 0) -> None:
        self.clock.pass_(host)
        if self.device is not None and device:
            self.device.work(device)

    def forward(self) -> None:
        self.spend(10 * US)
        for layer in self.layers[self.skip :]:
            layer.forward()
        for stamp in self.stamped:
            stamp()


@dataclass(frozen=True)
class Work:
    kind: StepKind = "decode"
    rows: int = 4
    tokens: int = 4
    extra: int = 0  # ns of host time in the forward pass


class Engine:
    """The methods that a real engine has, at the same places in the tree."""

    def __init__(self, clock: Clock, device: SimulatedDevice | None = None, layers: int = 3) -> None:
        self.clock, self.device = clock, device
        self.model = Model(clock, device, layers, host=20 * US, work=100 * US)
        self.steps = 0
        self.work: list[Work] = []
        self.fault: Exception | None = None

    def turn(self) -> bool | None:
        self.border()
        return self.step()

    def run(self, *works: Work) -> None:
        for work in works:
            self.work.append(work)
            self.turn()

    def border(self) -> None:
        self.clock.pass_(5 * US)

    def schedule(self) -> Work | None:
        self.clock.pass_(7 * US)
        return self.work.pop(0) if self.work else None

    def step(self) -> bool | None:
        work = self.schedule()
        if work is None:
            return None
        self.forward(work)
        self.sample()
        self.publish()
        self.steps += 1
        return True

    def forward(self, work: Work) -> None:
        if self.fault is not None:
            raise self.fault
        self.clock.pass_(work.extra)
        self.model.forward()

    def sample(self) -> None:
        self.clock.pass_(3 * US)
        self.fetch()

    def fetch(self) -> None:
        """Wait for the device, as reading the tokens does."""
        if self.device is not None:
            self.clock.now = self.device.free_at()

    def publish(self) -> None:
        self.clock.pass_(4 * US)

    def sites(self) -> list[Site]:
        layers = [
            Site("mla_attn", layer, "forward", Detail.LAYER, device=True, once_per="model_forward")
            for layer in self.model.layers
        ]
        ops = [Site("attend", layer, "op", Detail.OP, device=True) for layer in self.model.layers]
        return [
            Site("step", self, "step", role=Role.ROOT, device=True),
            Site("scheduler.inbox", self, "border", role=Role.LEAD),
            Site("scheduler.schedule", self, "schedule"),
            Site("forward", self, "forward", role=Role.KIND, device=True, facts=self._facts),
            Site("model_forward", self.model, "forward", device=True),
            *layers,
            *ops,
            Site("sample", self, "sample", device=True),
            Site("sample.fetch", self, "fetch", role=Role.WAIT),
            Site("publish", self, "publish"),
        ]

    def _facts(self, work: Work) -> StepFacts:
        return StepFacts(work.kind, work.rows, work.tokens, self.steps)


class FakeStamps:
    """A backend that times its own sections."""

    def __init__(self) -> None:
        self.on = False
        self.sections: list[Section] = []

    def record(self, on: bool) -> None:
        self.on = on

    def take(self) -> list[Section]:
        taken, self.sections = self.sections, []
        return taken


@dataclass
class Bench:
    """A profiler on an engine, both on one simulated clock."""

    clock: Clock = field(default_factory=Clock)
    device: SimulatedDevice | None = None
    stamps: Stamps | None = None
    layers: int = 3

    def __post_init__(self) -> None:
        self.engine = Engine(self.clock, self.device, self.layers)
        self.published: dict[tuple[str, str], float] = {}
        device: Device | NA = NO_DEVICE if self.device is None else self.device
        self.profiler = Profiler(
            self.engine.sites, stamps=self.stamps, device=device, not_timed={"shared": "fused"},
            publish=self._publish, clock=self.clock,
        )  # fmt: skip

    def _publish(self, seconds: dict[tuple[str, str], float]) -> None:
        self.published = seconds

    def on(self, detail: Detail = Detail.OP) -> Bench:
        self.profiler.configure(True, detail)
        return self

    def off(self) -> None:
        self.profiler.configure(False, self.profiler.detail)

    def report(self, window: float = 900.0) -> SpanReport:
        self.profiler.flush()
        report = self.profiler.report(BUILD, window)
        assert report is not None
        return report


def on_a_device() -> Bench:
    clock = Clock()
    return Bench(clock, SimulatedDevice(clock))


def kind(report: SpanReport, name: StepKind = "decode") -> KindSpans:
    return next(each for each in report.kinds if each.kind == name)


def span(report: SpanReport, path: str, name: StepKind = "decode") -> SpanRow:
    return next(each for each in kind(report, name).spans if each.path == path)


def paths(rows: Sequence[SpanRow]) -> list[str]:
    return [row.path for row in rows]
