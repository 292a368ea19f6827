"""The screen that draws: one of its views at a time, between the header and the footer, in one tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import Screen

from ..exits import Failure
from . import header
from .canvas import Canvas
from .filter_field import FilterField
from .keys import BY_ID, REPLAY_HINTS
from .lines import Line, fit
from .scene import SPANS, Scene
from .store import Picture
from .toasts import Toasts
from .views.view import View

if TYPE_CHECKING:
    from .app import Console

LEAST = (80, 24)
_EAGER = 20  # ticks at the start that wait for the engine's first word only so long:
_EAGER_PAUSE = 0.05  # seconds


class Drawn(Screen[None]):
    """What is shown, and nothing of what keys do to it. It begins with the view number `first`."""

    def __init__(self, console: Console, views: tuple[View, ...], first: int) -> None:
        super().__init__()
        self._owner = console
        self._views = views
        self._current = first
        self._span = 1  # index into SPANS
        self._at: float | None = None
        self._frozen: Picture | None = None
        self._scene: Scene | None = None
        self._toasts = Toasts()
        self._drawn: tuple[int, Size, float] = (-1, Size(), 0.0)  # picture, size and time
        self.ticks = 0

    def compose(self) -> ComposeResult:
        plain = self._owner.ascii_text
        yield Canvas(id="head", ascii_text=plain)
        yield Canvas(id="alarms", ascii_text=plain)
        yield Canvas(id="body", ascii_text=plain)
        yield Canvas(id="foot", ascii_text=plain)
        yield FilterField()

    def on_mount(self) -> None:
        self.dress()
        self._ask_for_what_is_shown()
        self._tick()

    def _ask_for_what_is_shown(self) -> None:
        self._owner.wants_sequences(self.view.wants_sequences(self.size.width))
        self._owner.wants_spans(SPANS[self._span] if self.view.wants_spans else None)

    def dress(self) -> None:
        for canvas in self.query(Canvas):
            canvas.dress(self._owner.styles_by_role)

    def _tick(self) -> None:
        """Armed again after its own work, so that slow ticks never pile up."""
        self.ticks += 1
        self.draw(only_if_new=True)
        pause = 1 / self._owner.hz
        if self.ticks < _EAGER and self._owner.store.picture.link.heard is None:
            pause = min(pause, _EAGER_PAUSE)
        self.set_timer(pause, self._tick)

    def draw(self, *, only_if_new: bool = False) -> None:
        """One picture, in one batch. Without news the clock alone is drawn, once a second."""
        newest = self._owner.newest()
        now = self._owner.clock()
        for toast in self._toasts.fresh(newest):
            self.notify(toast.text, title=toast.title, severity=toast.severity, markup=False)
        picture = self._frozen or newest
        number, size, when = self._drawn
        if only_if_new and (picture.number, self.size) == (number, size) and now - when < 1.0:
            return
        self._drawn = (picture.number, self.size, now)
        if self._frozen is not None:
            now = picture.link.heard or now
        scene = Scene(
            picture,
            SPANS[self._span],
            self._at,
            now,
            self._owner.ascii_text,
            self._frozen is not None,
            self._owner.session,
        ).carrying(self._scene)
        self._scene = scene
        width, height = self.size
        with self.app.batch_update():
            if width < LEAST[0] or height < LEAST[1]:
                self._too_small(width, height)
            else:
                self._draw(scene, width, height)

    def _draw(self, scene: Scene, width: int, height: int) -> None:
        self._canvas("head").show(self.head_lines(scene, width))
        alarms = self.alarm_lines(scene, width)
        faded = scene.stale
        self._height_of("head", 2)
        self._height_of("alarms", len(alarms))
        self._canvas("alarms").show(alarms)
        self._height_of("foot", 0 if self.query_one(FilterField).is_open else 1)
        self._canvas("body").show(self.view.lines(scene, width, height - 3 - len(alarms)), faded=faded)
        self._canvas("foot").show([header.footer(self._hints(), self._note(), width)])

    def head_lines(self, scene: Scene, width: int) -> list[Line]:
        names = [(view.name, view.short) for view in self._views]
        return [header.header(scene, width), header.tabs(names, self._current, scene, self._owner.hz, width)]

    def alarm_lines(self, scene: Scene, width: int) -> list[Line]:
        return [fit(line, width) for line in header.alarms(scene)]

    def _too_small(self, width: int, height: int) -> None:
        for name in ("head", "alarms", "foot"):
            self._height_of(name, 0)
        text = f"arc top needs {LEAST[0]}x{LEAST[1]}, this terminal is {width}x{height}"
        body: list[Line] = [[(text[:width], "need")]]
        snapshot = self._owner.store.picture.snapshot
        if snapshot is not None:
            body.append([(f"running {snapshot.running}  waiting {snapshot.waiting}"[:width], "text")])
        self._canvas("body").show(body)

    def _height_of(self, name: str, height: int) -> None:
        """Sizes change only with what is shown, never in an ordinary tick."""
        canvas = self._canvas(name)
        if canvas.display != (height > 0) or (height and canvas.styles.height != height):
            canvas.display = height > 0
            canvas.styles.height = max(1, height)

    def _canvas(self, name: str) -> Canvas:
        return self.query_one(f"#{name}", Canvas)

    def on_resize(self) -> None:
        self._ask_for_what_is_shown()
        self.draw(only_if_new=True)

    def _hints(self) -> list[tuple[str, str]]:
        viewer, chosen = self._owner.viewer, self._owner.keymap
        first = dict(REPLAY_HINTS) if self._owner.player else {}
        if self._owner.opened is not None:
            first = {"back": "fleet"}
        return [
            (chosen.get(name, BY_ID[name].shown), word)
            for name, word in (
                first | {name: first.get(name, word) for name, word in self.view.hints}
            ).items()
            if not (viewer and BY_ID[name].changes_engine)
        ]

    def _note(self) -> Line:
        if self.view.filter is not None:
            return [(f"/{self.view.filter.text}/ ", "need"), (self.view.note(), "dim")]
        return [(self.view.note(), "dim")]

    @property
    def view(self) -> View:
        return self._views[self._current]

    def tell(self, text: str, how: object = None) -> None:
        """A toast. `how` is a severity, or the failure that it is about."""
        severity = (
            "error"
            if isinstance(how, Failure) or how == "error"
            else "warning"
            if how == "warning"
            else "information"
        )
        self.notify(text, severity=severity, markup=False)
