"""The one registry of flags: every setting that an operator may touch, declared once.

From these declarations come the checks of TOML and JSON values, the ARC_… environment names, the command line's
options, the control protocol's form and docs/flags.md. This module imports nothing heavy: the console loads it.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Value = bool | int | float | str
Kind = Literal["bool", "int", "float", "str", "choice"]


class Reach(enum.StrEnum):
    """When a change takes effect."""

    LIVE = "live"  # at the next step border
    RESTART = "restart"  # at the next start; refused by name at runtime


class FlagReason(enum.StrEnum):
    """Why a value was not taken: a stable slug for programs, beside the message for people."""

    UNKNOWN = "unknown"  # no flag has this name
    TYPE = "type"  # not a value of the flag's kind
    BOUNDS = "bounds"  # a number outside [low, high]
    CHOICE = "choice"  # none of the choices
    FORM = "form"  # text of a form that the flag cannot have
    RESTART = "restart"  # a restart flag changed at runtime
    CONFLICT = "conflict"  # at odds with another flag's value


class FlagError(Exception):
    """One flag's name or value was not taken. `related` names the other flags of a conflict."""

    def __init__(self, flag: str, reason: FlagReason, message: str, related: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.flag = flag
        self.reason = reason
        self.message = message
        self.related = related


Change = Callable[[Value, Value], bool]  # from the old value to the new one


def _to(value: Value) -> Change:
    return lambda old, new: new == value


def _raised(old: Value, new: Value) -> bool:
    return _size(new) > _size(old)


def _lowered(old: Value, new: Value) -> bool:
    return _size(new) < _size(old)


def _raised_from_0(old: Value, new: Value) -> bool:
    return old == 0 and new != 0


def _unbounded_or_lowered(old: Value, new: Value) -> bool:
    """Of a cap: 0 is none, and how much a word (auto) comes to is not known here."""
    return 0 in (old, new) or "auto" in (old, new) or _lowered(old, new)


def _size(value: Value) -> float:
    """The word `none` is no bound."""
    return math.inf if value == "none" else float(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """One declaration. Numbers lie in [low, high], or are one of `choices`; `words` are allowed besides numbers.

    A word ("auto", "none") stays text in every form: TOML, JSON, environment and command line spell it alike.
    """

    name: str
    kind: Kind
    default: Value
    meaning: str
    reach: Reach
    unit: str = ""
    low: int | float | None = None
    high: int | float | None = None
    choices: tuple[str | int, ...] = ()
    words: tuple[str, ...] = ()
    form: str = ""  # a regular expression for all of a str
    danger: str | None = None  # what a live change may hurt
    risky: Change | None = None  # which changes those are; it comes with `danger`

    def hurts(self, old: Value, new: Value) -> bool:
        """Whether a live change from `old` to `new` is one that `danger` warns of: seldom both ways are."""
        return old != new and self.risky is not None and self.risky(old, new)

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def allowed(self) -> str:
        """What may stand here, for people: "1 to 4096", "auto or 1 to 1024 threads", "on or off"."""
        if self.kind == "bool":
            return "on or off"
        parts = [*self.words]
        if self.choices:
            parts += [str(choice) for choice in self.choices]
        elif self.kind in ("int", "float"):
            number = f"{_plain(self.low)} to {_plain(self.high)}"
            parts.append(f"{number} {self.unit}".rstrip())
        else:
            parts.append("text")
        return ", ".join(parts[:-1]) + (" or " if len(parts) > 1 else "") + parts[-1]


def _plain(number: float | None) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


LIVE, RESTART = Reach.LIVE, Reach.RESTART

_DECLARED: tuple[Flag, ...] = (
    # what is served
    Flag(
        "model.path", "str", "carried",
        "folder of the model: config.json, safetensors, tokenizer.json; `carried` is the small model in this package",
        RESTART, words=("carried",),
    ),
    Flag(
        "model.name", "str", "auto",
        "model id that the API serves; auto is the folder's name",
        RESTART, words=("auto",), form=r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}",
    ),
    Flag(
        "model.dtype", "choice", "auto",
        "number format of weights and cache; auto is the checkpoint's own",
        RESTART, choices=("auto", "bfloat16", "float16", "float32"),
    ),
    Flag(
        "model.max_len", "int", "auto",
        "longest sequence, prompt and output together; auto is the model's own limit",
        RESTART, unit="tokens", low=16, high=16_777_216, words=("auto",),
    ),
    Flag(
        "model.device", "str", "auto",
        "where the model runs; auto is the first CUDA card, else the CPU",
        RESTART, words=("auto",), form=r"cpu|cuda(:[0-9]{1,3})?",
    ),
    # which sequences run together
    Flag(
        "admission.policy", "choice", "ragged",
        "ragged: decode rows of any lengths share a forward; bucketed: only rows of one KV length, kept for comparison",
        LIVE, choices=("ragged", "bucketed"),
        danger="bucketed runs fewer rows a step: throughput falls when lengths are spread", risky=_to("bucketed"),
    ),
    Flag(
        "admission.bucket_losers", "choice", "wait",
        "under bucketed admission, what rows outside the chosen bucket do: wait with their pages, or give them up",
        LIVE, choices=("wait", "preempt"),
        danger="preempt computes the losers' tokens again each time they come back", risky=_to("preempt"),
    ),
    # how a step is formed
    Flag(
        "sched.max_running", "int", 64,
        "most sequences that hold KV at once; lowering it lets running ones finish",
        LIVE, unit="sequences", low=1, high=4096,
    ),
    Flag(
        "sched.max_step_tokens", "int", 1024,
        "most query tokens in one step, decode rows and prompt chunks together",
        LIVE, unit="tokens", low=2, high=1_048_576,
        danger="a larger step makes every running row wait longer for its next token", risky=_raised,
    ),
    Flag(
        "sched.prefill_chunk", "int", 256,
        "most prompt tokens of one sequence in a step",
        LIVE, unit="tokens", low=1, high=1_048_576,
        danger="a larger chunk brings a prompt's first token sooner and every running row's next token later",
        risky=_raised,
    ),
    Flag(
        "sched.order", "choice", "fcfs",
        "who is admitted first: fcfs by arrival, prefix by the longest cached prefix (bounded by age), priority by the "
        "request's number",
        LIVE, choices=("fcfs", "prefix", "priority"),
    ),
    Flag(
        "sched.max_waiting", "int", 256,
        "most requests that wait for admission; past it the API answers 429 with Retry-After",
        LIVE, unit="requests", low=1, high=1_048_576,
    ),
    Flag(
        "sched.paused", "bool", False,
        "admit nothing; running sequences go on",
        LIVE, danger="requests wait until it is off again, then are refused once sched.max_waiting is reached",
        risky=_to(True),
    ),
    # speculation
    Flag(
        "spec.depth", "int", 0,
        "tokens that the model's own prediction layer drafts for each row and the next step verifies; 0 drafts none",
        LIVE, unit="tokens", low=0, high=4,
        danger="raised from 0, only sequences that begin then have drafts: of those that run, and of prefixes cached "
        "before, the prediction layer's latents are missing; such prefixes are computed again",
        risky=_raised_from_0,
    ),
    # the KV cache
    Flag(
        "cache.prefix", "bool", True,
        "reuse the KV of prompt prefixes seen before",
        LIVE, danger="off computes shared prefixes again for every request", risky=_to(False),
    ),
    Flag(
        "cache.page_cap", "int", "none",
        "most KV pages that may be held, of those reserved at start; lowering it drains down",
        LIVE, unit="pages", low=1, high=1_073_741_824, words=("none",),
        danger="prompts that do not fit under the cap fail when their turn comes", risky=_lowered,
    ),
    Flag(
        "cache.page_size", "int", 32,
        "tokens in one KV page",
        RESTART, unit="tokens", choices=(8, 16, 32, 64, 128),
    ),
    Flag(
        "cache.layout", "choice", "paged",
        "paged: latents lie in pages; dense: in one tensor a layer and batch, rows front-aligned, kept for comparison",
        RESTART, choices=("paged", "dense"),
    ),
    Flag(
        "cache.latents", "choice", "stored",
        "how the cache keeps latents: stored, in model.dtype; fp8, the latent part in 8-bit floats with a scale a "
        "token, for about 1.75 times the tokens in the same memory (docs/kernels.md says what it costs in accuracy)",
        RESTART, choices=("stored", "fp8"),
    ),
    Flag(
        "cache.dead_prefix", "choice", "mask",
        "in the dense layout, what lies before a shorter row's first token is masked, or stripped off: then every step "
        "puts the batch together and takes it apart again",
        LIVE, choices=("mask", "strip"),
    ),
    Flag(
        "cache.memory_mib", "int", "auto",
        "memory for KV pages; auto takes, of the memory measured free once the weights are loaded, nine tenths on a "
        "card; on the host half, and no more than sched.max_running sequences of model.max_len tokens fill",
        RESTART, unit="MiB", low=1, high=16_777_216, words=("auto",),
    ),
    # the allocator
    Flag(
        "alloc.enabled", "bool", True,
        "large buffers of a step come from a bounded pool, on a card from torch's own cache, its rest bounded; off: "
        "from the system",
        LIVE,
    ),
    Flag(
        "alloc.cap_mib", "int", "auto",
        "most memory that the allocator holds; auto takes an eighth of what is measured free when it is armed, at "
        "least 64 MiB and at most 1024 MiB; 0 is unbounded, for comparison only",
        LIVE, unit="MiB", low=0, high=16_777_216, words=("auto",),
        danger="0 lets it grow with every new size of buffer; a lower cap evicts at the next step border",
        risky=_unbounded_or_lowered,
    ),
    # computing
    Flag(
        "kernels.backend", "choice", "auto",
        "auto: the fastest backend that takes each operation; native: C++ for the processor; triton: the kernels for "
        "cards; torch: the reference; weights are laid out for one backend, so a change needs a restart",
        RESTART, choices=("auto", "native", "triton", "torch"),
    ),
    Flag(
        "kernels.graphs", "bool", True,
        "on a card, run decode steps as replays of graphs that are captured at the start for some numbers of rows; "
        "where a step cannot be one, it runs as ever",
        RESTART,
    ),
    Flag(
        "kernels.weights", "choice", "stored",
        "how weights are kept, where a backend can: stored, in model.dtype; int8; int4, the experts', and on the CPU "
        "those of the other MLPs too and the rest in int8; fp8, the experts' (docs/kernels-cpu.md and docs/kernels.md "
        "say what each costs in accuracy)",
        RESTART, choices=("stored", "int8", "int4", "fp8"),
    ),
    Flag(
        "cpu.threads", "int", "auto",
        "threads that compute on the CPU; auto is one for each of this process's cores with the C++ kernels, whose "
        "threads do not wait for each other; without them it leaves one core to the API and the control socket",
        RESTART, unit="threads", low=1, high=1024, words=("auto",),
    ),
    # the instruments
    Flag(
        "profile.enabled", "bool", False,
        "time where each step goes: the spans of `arc spans`; off costs nothing",
        LIVE,
    ),
    Flag(
        "profile.detail", "choice", "layer",
        "how deep spans go: the parts of a step; its layers too; the operations in each layer too",
        LIVE, choices=("step", "layer", "op"), danger="op costs a few percent of the steps that it times",
        risky=_to("op"),
    ),
    # the HTTP API
    Flag(
        "http.host", "str", "127.0.0.1",
        "address to listen on; any other than this machine's own needs ARC_API_KEY",
        RESTART, form=r"[A-Za-z0-9.:_-]{1,253}",
    ),
    Flag("http.port", "int", 8000, "port to listen on; 0 takes a free one", RESTART, low=0, high=65_535),
    Flag(
        "http.max_body_mib", "int", 8,
        "largest request body; past it the API answers 413",
        RESTART, unit="MiB", low=1, high=1024,
    ),
    Flag(
        "http.max_inflight", "int", 1024,
        "most requests that the API serves at once, streaming ones included; past it it answers 429",
        LIVE, unit="requests", low=1, high=65_536,
    ),
    Flag(
        "http.stall_s", "float", 30.0,
        "with work to do and no step for this long, /health says no",
        LIVE, unit="seconds", low=0.1, high=3600.0,
        danger="below the time of one long step, health checks fail while the engine works", risky=_lowered,
    ),
    # the control socket
    Flag(
        "control.name", "str", "main",
        "the engine's name on this machine: its control socket is <name>.sock",
        RESTART, form=r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}",
    ),
    Flag(
        "control.group", "str", "none",
        "Unix group that may watch through a second, viewer-only socket",
        RESTART, words=("none",), form=r"[A-Za-z0-9_][A-Za-z0-9._-]{0,31}",
    ),
    # the log
    Flag(
        "log.level", "choice", "info",
        "least severity that is logged",
        LIVE, choices=("debug", "info", "warning", "error"),
    ),
)  # fmt: skip

FLAGS: Mapping[str, Flag] = MappingProxyType({flag.name: flag for flag in _DECLARED})

DEFAULTS: Mapping[str, Value] = MappingProxyType({flag.name: flag.default for flag in _DECLARED})

# Names that start with ARC_ and are not flags. The API key is a secret: it is no flag and never part of the settings.
ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "ARC_PROFILE": "the profile to run, unless --profile names one",
        "ARC_API_KEY": "the key that HTTP clients must send; needed to listen beyond this machine",
    }
)


def environment_name(flag: Flag) -> str:
    """sched.max_running is ARC_SCHED_MAX_RUNNING in the environment."""
    return "ARC_" + flag.name.upper().replace(".", "_")


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known names that look most like `name`, best first; a flag is also found by its last part alone."""
    from difflib import get_close_matches  # only errors pay for it

    known = list(known)
    plain = name.strip().lower().replace("-", "_")
    tails = [full for full in known if full.partition(".")[2] == plain]
    close = get_close_matches(plain, known, n=3, cutoff=0.6)
    return tuple(dict.fromkeys(tails + close))[:3]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A closing clause for an error about an unknown name; empty when nothing is near."""
    names = nearest(name, known)
    return f"; did you mean {' or '.join(names)}?" if names else ""


def lookup(name: str) -> Flag:
    """The declared flag, or a FlagError that names the nearest ones."""
    flag = FLAGS.get(name)
    if flag is None:
        hint = did_you_mean(name, FLAGS)
        raise FlagError(
            name, FlagReason.UNKNOWN, f"there is no flag {name!r}{hint or '; `arc flags` lists them'}"
        )
    return flag


_INT = re.compile(r"[+-]?[0-9]+(_[0-9]+)*", re.ASCII)
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_SCALED = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt])(i?b)?", re.ASCII | re.IGNORECASE)
_BOOLS = {"on": True, "true": True, "off": False, "false": False}
_LONGEST_NUMBER = 32  # digits and signs; longer text cannot be within any flag's bounds


def parse(flag: Flag, text: str) -> Value:
    """A value from text (environment, command line). Strict: what is not plainly a value is a FlagError."""
    if flag.kind == "bool":
        if text not in _BOOLS:
            raise _refuse(flag, FlagReason.TYPE, text, "write on or off (true or false)")
        return _BOOLS[text]
    if flag.kind in ("str", "choice") or text in flag.words:
        return check(flag, text)
    pattern = _INT if flag.kind == "int" else _FLOAT
    if len(text) > _LONGEST_NUMBER or not pattern.fullmatch(text):
        raise _refuse(flag, FlagReason.TYPE, text, _number_hint(flag, text))
    return check(flag, int(text) if flag.kind == "int" else float(text))


def check(flag: Flag, value: object) -> Value:
    """A typed value (TOML, JSON), unchanged except that an integer given for a float becomes one. Raises FlagError."""
    if flag.kind == "bool":
        if not isinstance(value, bool):
            raise _refuse(flag, FlagReason.TYPE, value, "write true or false, without quotes")
        return value
    if flag.kind in ("int", "float"):
        return _check_number(flag, value)
    return _check_text(flag, value)


def _check_number(flag: Flag, value: object) -> Value:
    if isinstance(value, str) and value in flag.words:
        return value
    accepted = int if flag.kind == "int" else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise _refuse(flag, FlagReason.TYPE, value, _number_hint(flag, value))
    if flag.choices:
        if value not in flag.choices:
            raise _refuse(flag, FlagReason.CHOICE, value, f"it is one of {flag.allowed}")
        return value
    assert flag.low is not None and flag.high is not None
    if not flag.low <= value <= flag.high:  # also refuses NaN
        raise _refuse(flag, FlagReason.BOUNDS, value, f"it may be {flag.allowed}")
    return value if flag.kind == "int" else float(value)


def _check_text(flag: Flag, value: object) -> str:
    if not isinstance(value, str):
        raise _refuse(flag, FlagReason.TYPE, value, f"it is text: {flag.allowed}")
    if flag.choices:
        if value not in flag.choices:
            hint = did_you_mean(value, [str(choice) for choice in flag.choices])
            raise _refuse(flag, FlagReason.CHOICE, value, f"it is one of {flag.allowed}{hint}")
        return value
    if value in flag.words:
        return value
    if (
        not value or len(value) > 4096 or not value.isprintable()
    ):  # isprintable refuses controls and lone surrogates
        raise _refuse(flag, FlagReason.FORM, value, "it is 1 to 4096 printable characters")
    if flag.form and not re.fullmatch(flag.form, value, re.ASCII):
        raise _refuse(flag, FlagReason.FORM, value, f"it must match {flag.form}")
    return value


def show(value: object) -> str:
    """A value as an operator writes it on the command line: on, off, numbers and text as they are."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _refuse(flag: Flag, reason: FlagReason, value: object, right: str) -> FlagError:
    huge = (
        isinstance(value, int) and value.bit_length() > 128
    )  # Python will not print integers past 4300 digits
    shown = "so large a number" if huge else repr(value)
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return FlagError(flag.name, reason, f"{flag.name} cannot be {shown}: {right}")


def _number_hint(flag: Flag, value: object) -> str:
    what = "a whole number" if flag.kind == "int" else "a number"
    right = f"it is {what}, {flag.allowed}" if not flag.choices else f"it is one of {flag.allowed}"
    if isinstance(value, str) and flag.unit == "MiB" and (scaled := _SCALED.fullmatch(value)):
        mib = float(scaled[1]) * {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}[scaled[2].lower()]
        if mib >= 1 and mib == int(mib):
            right += f", without a suffix: {int(mib)}"
    elif isinstance(value, str) and _FLOAT.fullmatch(value):
        right += ", written without quotes" if _INT.fullmatch(value) else ""
    return right


# Flags that must agree: (the smaller, the larger, why).
_AT_MOST: tuple[tuple[str, str, str], ...] = (
    ("sched.prefill_chunk", "sched.max_step_tokens", "a chunk has to fit into one step"),
    ("sched.max_running", "sched.max_step_tokens", "every running sequence needs one token of each step"),
)


def check_together(values: Mapping[str, Value]) -> list[FlagError]:
    """Conflicts between flags, of a complete and singly valid set of values."""
    errors: list[FlagError] = []
    for small, large, why in _AT_MOST:
        if values[small] > values[large]:  # pyright: ignore[reportOperatorIssue]  # both are ints by declaration
            message = f"{small} is {values[small]} but {large} is {values[large]}: {why}"
            errors.append(FlagError(small, FlagReason.CONFLICT, message, related=(large,)))
    if values["cache.layout"] == "dense" and values["cache.prefix"]:
        message = (
            "cache.prefix is on but cache.layout is dense: its rows share no prefix; set cache.prefix = off"
        )
        errors.append(FlagError("cache.prefix", FlagReason.CONFLICT, message, related=("cache.layout",)))
    if values["cache.layout"] == "dense" and values["cache.latents"] != "stored":
        message = (
            f"cache.latents is {values['cache.latents']} but cache.layout is dense, which keeps them as stored; "
            "set cache.latents = stored"
        )
        errors.append(FlagError("cache.latents", FlagReason.CONFLICT, message, related=("cache.layout",)))
    return errors
