"""What can be timed: a method of one object, under the name of its span."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

StepKind = Literal["decode", "prompt", "mixed"]
KINDS: tuple[StepKind, ...] = ("decode", "prompt", "mixed")


class Detail(enum.IntEnum):
    """How deep to look: `profile.detail`. Each level has those before it in it."""

    STEP = 0
    LAYER = 1
    OP = 2


class Role(enum.Enum):
    SPAN = "span"
    ROOT = "root"  # the step. What is called while no step is open is not recorded
    LEAD = "lead"  # belongs to the step, but runs just before it: the step then begins with it
    KIND = "kind"  # tells what kind of step it is; a step without one (nothing to do) is not kept
    WAIT = (
        "wait"  # the host waits for the device here; on a device that is the host itself it is not recorded
    )


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What the step was. All projections and experts run over all of a step's tokens at once, so a step with decode and
    prompt rows cannot be divided honestly: it is `mixed`, a subtree of its own."""

    kind: StepKind
    rows: int
    tokens: int
    number: int


@dataclass(frozen=True, slots=True)
class Site:
    """`owner.method` is the span `name`. Several sites of one name (the layers') are one span with more calls.

    The method is looked up by name on the instance at each call, or putting a timed one there would have no effect: so
    neither `__call__` nor an owner with `__slots__` will do.
    """

    name: str
    owner: object
    method: str
    detail: Detail = Detail.STEP
    role: Role = Role.SPAN
    device: bool = False  # it launches work, so a pair of device events is worth its cost
    once_per: str = (
        ""  # the sites of this name are each called once in a call of the span so named, their parent
    )
    facts: Callable[..., StepFacts] | None = None  # of a KIND: from the method's arguments


class SiteError(Exception):
    """A site that cannot be timed: a fault of the wiring, found when profiling is turned on."""


def check(site: Site) -> None:
    kind = type(site.owner).__name__
    if not hasattr(site.owner, "__dict__"):
        raise SiteError(f"{site.name}: {kind} has __slots__, so no timed {site.method} can be put on one")
    if not callable(getattr(site.owner, site.method, None)):
        raise SiteError(f"{site.name}: {kind} has no method {site.method}")
    if site.method.startswith("__"):
        raise SiteError(f"{site.name}: Python looks {site.method} up on the class, not on the instance")
    if (site.role is Role.KIND) != (site.facts is not None):
        raise SiteError(f"{site.name}: a kind, and nothing else, says what the step was")
