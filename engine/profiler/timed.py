"""Timed methods, and putting them in the place of the real ones.

Off is the very same function object as before: a timed method is an entry of the instance's own `__dict__`, which hides
the class's method, and turning off deletes that entry. The timed ones are closures over arrays: no context managers, no
objects a call, since a call that takes microseconds must not be made to take twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .device import NO_EVENT, NOT_ASKED, EventRing
from .sites import KINDS, Role, Site, check
from .tape import CAPACITY, Tape
from .tree import ROOT

Method = Callable[..., Any]
Clock = Callable[[], int]  # ns


def host(call: Method, name: str, tape: Tape, clock: Clock) -> Method:
    """A span of the host's time alone."""
    nodes, outers, begans, endeds = tape.node, tape.outer, tape.began, tape.ended
    firsts, lasts, device = tape.first, tape.last, tape.device
    under: dict[int, int] = {}  # node of the outer call -> this one's under it
    tree = tape.tree

    def timed(*args: Any, **kwargs: Any) -> Any:
        outer = tape.open
        place = tape.n
        if outer < 0 or place >= CAPACITY:
            tape.lost += outer >= 0
            return call(*args, **kwargs)
        tape.n = place + 1
        tape.open = place
        above = nodes[outer]
        try:
            nodes[place] = under[above]
        except KeyError:
            nodes[place] = under[above] = tree.node(above, name)
        outers[place] = outer
        if device:
            firsts[place] = lasts[place] = NOT_ASKED
        begans[place] = clock()
        try:
            return call(*args, **kwargs)
        finally:
            endeds[place] = clock()
            if tape.open != place:
                tape.misnested += 1
            tape.open = outer

    return timed


def on_device(call: Method, name: str, tape: Tape, clock: Clock, ring: EventRing) -> Method:
    """A span of host time with an event of the device at either end."""
    nodes, outers, begans, endeds = tape.node, tape.outer, tape.began, tape.ended
    firsts, lasts = tape.first, tape.last
    under: dict[int, int] = {}
    tree, record = tape.tree, ring.record

    def timed(*args: Any, **kwargs: Any) -> Any:
        outer = tape.open
        place = tape.n
        if outer < 0 or place >= CAPACITY:
            tape.lost += outer >= 0
            return call(*args, **kwargs)
        tape.n = place + 1
        tape.open = place
        above = nodes[outer]
        try:
            nodes[place] = under[above]
        except KeyError:
            nodes[place] = under[above] = tree.node(above, name)
        outers[place] = outer
        begans[place] = clock()
        firsts[place] = record()
        try:
            return call(*args, **kwargs)
        finally:
            lasts[place] = record()
            endeds[place] = clock()
            if tape.open != place:
                tape.misnested += 1
            tape.open = outer

    return timed


def kind(site: Site, call: Method, tape: Tape, clock: Clock, ring: EventRing | None) -> Method:
    """The span that tells decode from prompt: its name is the step's kind. A step that fails in it is not kept."""
    facts_of = site.facts
    assert facts_of is not None
    spans: dict[str, Method] = {}

    def timed(*args: Any, **kwargs: Any) -> Any:
        facts = facts_of(*args, **kwargs)
        span = spans.get(facts.kind)
        if span is None:
            for each in KINDS:  # side by side in the tree, whichever comes first
                tape.tree.node(tape.node[tape.open], each)
            span = host(call, facts.kind, tape, clock) if ring is None else (
                on_device(call, facts.kind, tape, clock, ring)
            )  # fmt: skip
            spans[facts.kind] = span
        out = span(*args, **kwargs)
        tape.facts = facts
        return out

    return timed


def lead(call: Method, name: str, tape: Tape, clock: Clock) -> Method:
    node = tape.tree.node(ROOT, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = clock()
        try:
            return call(*args, **kwargs)
        finally:
            tape.lead = (node, began, clock())

    return timed


def root(
    call: Method,
    tape: Tape,
    clock: Clock,
    ring: EventRing | None,
    ended: Callable[[], None],
    kept: Callable[[], None],
) -> Method:
    """The step. `ended` is called at the end of each, `kept` after each one that is kept; neither is in its time."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        place = tape.begin(clock())
        if ring is not None:
            tape.first[place] = ring.record()
        try:
            return call(*args, **kwargs)
        finally:
            first = NO_EVENT
            if ring is not None:
                first = tape.first[place]
                tape.last[place] = ring.record()
            tape.ended[place] = clock()
            if tape.open != place:
                tape.misnested += 1
            ended()
            if tape.close():
                kept()
            elif ring is not None and first != NO_EVENT:
                ring.rewind(first)

    return timed


@dataclass(frozen=True, slots=True)
class _Placed:
    """A timed method in an instance's own dictionary, and what stood there before it (usually nothing)."""

    owner: object
    method: str
    hidden: Method | None


class Swap:
    """Puts timed methods in place and takes them away again."""

    def __init__(self) -> None:
        self._placed: list[_Placed] = []

    def put(self, sites: Sequence[Site], make: Callable[[Site, Method], Method]) -> None:
        """All of the sites or, when one of them cannot be timed, none. Raises SiteError."""
        assert not self._placed, "taken away before others are put"
        for site in sites:
            check(site)
        for site in sites:
            hidden = vars(site.owner).get(site.method)
            vars(site.owner)[site.method] = make(site, getattr(site.owner, site.method))
            self._placed.append(_Placed(site.owner, site.method, hidden))

    def take_away(self) -> None:
        for placed in reversed(self._placed):
            if placed.hidden is None:
                del vars(placed.owner)[placed.method]
            else:
                vars(placed.owner)[placed.method] = placed.hidden
        self._placed.clear()


def maker(
    tape: Tape, clock: Clock, ring: EventRing | None, ended: Callable[[], None], kept: Callable[[], None]
) -> Callable[[Site, Method], Method]:
    """What makes a site's timed method."""

    def make(site: Site, call: Method) -> Method:
        events = ring if site.device else None
        match site.role:
            case Role.ROOT:
                return root(call, tape, clock, events, ended, kept)
            case Role.LEAD:
                return lead(call, site.name, tape, clock)
            case Role.KIND:
                return kind(site, call, tape, clock, events)
            case Role.SPAN | Role.WAIT:
                if events is not None:
                    return on_device(call, site.name, tape, clock, events)
                return host(call, site.name, tape, clock)

    return make
