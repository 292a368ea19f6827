"""What a measurement leaves behind: one JSON file with everything that is needed to judge it and to do it again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...engine.control.protocol import NA, Value
from ..exits import Failure
from ..files import write_whole
from .histogram import Latency
from .load import Measured

FORMAT = 1  # of the file; a reader refuses any other


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Who measured, on what machine."""

    version: str
    revision: str  # with -dirty when files differ from the commit
    python: str
    system: str
    processor: str
    cores: int  # that this process may use


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. NA where only the HTTP side could be asked, with the reason."""

    url: str
    model: str
    version: str | NA
    revision: str | NA
    dirty: bool | NA
    name: str | NA
    pid: int | NA
    device: str | NA
    dtype: str | NA
    parameters: int | NA
    max_model_len: int | NA
    page_size: int | NA
    pages: int | NA
    profile: str | NA
    differs: (
        dict[str, Value] | None
    )  # flags whose value is not the profile's, when the run began; None: not known


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine itself counted, over the same window as the pass or a stated part of it."""

    seconds: float
    steps: int
    effective_batch: float | NA  # rows a step
    admitted: float | NA  # sequences that held KV, mean over the steps
    step_ms: float | NA
    output_rate: float | NA  # tokens a second
    preemptions: int
    recomputed_tokens: int


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the work. Rates are over `seconds`, from the first request sent to the last one ended."""

    seed: int
    seconds: float
    sent: int
    finished: int
    prompt_tokens: int
    output_tokens: int
    texts: int  # events with text; fewer than tokens where an event brings several
    late: int
    most_under_way: int
    good: int | None  # None: no bound was stated
    ttft: Latency | None
    itl: Latency | None
    tpot: Latency | None
    e2e: Latency | None
    errors: dict[str, int]
    messages: dict[str, list[str]]
    engine: Engine | None
    no_engine: str = ""  # why what the engine counted is not known

    @property
    def output_rate(self) -> float:
        """Output tokens a second, prefill included."""
        return self.output_tokens / self.seconds


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of an experiment, measured one or several times by the same code on the same settings."""

    name: str
    labels: dict[str, Value]  # what makes this cell another than the rest
    flags: dict[str, Value] = {}  # set for it, beside the engine's own
    revision: str | NA  # of the engine that was measured
    passes: tuple[Pass, ...]
    counted: dict[
        str, float | NA
    ] = {}  # what the engine counted over all its passes, of what this experiment is about


class Verdict(msgspec.Struct, frozen=True):
    word: Literal["confirmed", "refuted", "void"]
    why: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    format: int = FORMAT
    kind: str  # the command: run, admission, ...
    created: str
    command: dict[str, Any]  # its options, as they were in force
    client: Provenance
    server: Server | None
    cells: tuple[Cell, ...]
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()


class Spread(msgspec.Struct, frozen=True):
    """Of one number over repeats."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


METRICS: dict[str, tuple[str, Callable[[Pass], float | None]]] = {
    "output_tok_s": ("output tok/s", lambda each: each.output_rate),
    "requests_s": ("requests/s", lambda each: each.finished / each.seconds),
    "goodput_s": ("good requests/s", lambda each: None if each.good is None else each.good / each.seconds),
    "ttft_p50_ms": ("first token p50, ms", lambda each: _ms(each.ttft, "p50")),
    "ttft_p95_ms": ("first token p95, ms", lambda each: _ms(each.ttft, "p95")),
    "ttft_p99_ms": ("first token p99, ms", lambda each: _ms(each.ttft, "p99")),
    "itl_p50_ms": ("between tokens p50, ms", lambda each: _ms(each.itl, "p50")),
    "itl_p95_ms": ("between tokens p95, ms", lambda each: _ms(each.itl, "p95")),
    "itl_p99_ms": ("between tokens p99, ms", lambda each: _ms(each.itl, "p99")),
    "tpot_p50_ms": ("per output token p50, ms", lambda each: _ms(each.tpot, "p50")),
    "e2e_p50_ms": ("whole request p50, ms", lambda each: _ms(each.e2e, "p50")),
    "e2e_p99_ms": ("whole request p99, ms", lambda each: _ms(each.e2e, "p99")),
    "effective_batch": ("effective batch", lambda each: _engine(each, "effective_batch")),
}


def _ms(latency: Latency | None, name: str) -> float | None:
    return None if latency is None else 1000 * getattr(latency, name)


def _engine(each: Pass, name: str) -> float | None:
    value = None if each.engine is None else getattr(each.engine, name)
    return None if isinstance(value, NA) else value


def spread_of(passes: Iterable[Pass], metric: str) -> Spread | None:
    """Over the passes that have it; None where none has."""
    values = [value for each in passes if (value := METRICS[metric][1](each)) is not None]
    return Spread.of(values) if values else None


def pass_of(measured: Measured, seed: int, engine: Engine | NA) -> Pass:
    return Pass(
        seed=seed,
        seconds=measured.seconds,
        sent=measured.sent,
        finished=measured.finished,
        prompt_tokens=measured.prompt_tokens,
        output_tokens=measured.output_tokens,
        texts=measured.texts,
        late=measured.late,
        most_under_way=measured.most_under_way,
        good=measured.good if measured.bounds.stated else None,
        ttft=measured.ttft.summary(),
        itl=measured.itl.summary(),
        tpot=measured.tpot.summary(),
        e2e=measured.e2e.summary(),
        errors=dict(measured.errors),
        messages=measured.messages,
        engine=None if isinstance(engine, NA) else engine,
        no_engine=engine.na if isinstance(engine, NA) else "",
    )


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write(path: Path, result: Result) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


class _Head(msgspec.Struct):
    format: int


def read(path: Path) -> Result:
    """Raises Failure that says what is wrong with the file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(raw, type=_Head).format
        if found != FORMAT:
            raise Failure(f"{path} has format {found}; this arc reads format {FORMAT}")
        return msgspec.json.decode(raw, type=Result)
    except msgspec.DecodeError as error:
        raise Failure(f"{path} is no result of `arc bench`: {error}") from None


def one_revision(result: Result, where: str) -> str | NA:
    """The one revision that all cells were measured on. Raises Failure that names the cells when there are several."""
    by_revision: dict[str, list[str]] = {}
    for cell in result.cells:
        revision = cell.revision
        by_revision.setdefault(f"NA ({revision.na})" if isinstance(revision, NA) else revision, []).append(
            cell.name
        )
    if len(by_revision) > 1:
        named = "; ".join(f"{revision}: {', '.join(cells)}" for revision, cells in by_revision.items())
        raise Failure(f"{where} mixes cells of different revisions, which no ratio may: {named}")
    return result.cells[0].revision if result.cells else NA("it has no cells")
