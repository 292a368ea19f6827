"""Where to go in a replay, as people write it: a time of day, seconds to and fro, or a part of the whole."""

from __future__ import annotations

import re
import time

from .. import shown
from .dialogs import Prompt
from .player import Player
from .session import Replaying

_FORMS = "a time of day (14:05:30), a way to go (+30, -5m, 2h), or a part of the whole (40%)"
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_PART = re.compile(r"(\d+(?:\.\d+)?) ?%")
_WAY = re.compile(r"([+-]?)(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DAY = 86_400


class NotAMoment(Exception):
    """The text names no moment of this replay; the message says what would."""


def moment_of(text: str, replaying: Replaying) -> float:
    """time.time() of what is written. Raises NotAMoment."""
    text = text.strip()
    if found := _PART.fullmatch(text):
        share = float(found[1]) / 100
        if share > 1:
            raise NotAMoment("the whole has 100 %")
        return replaying.start + share * (replaying.end - replaying.start)
    if found := _WAY.fullmatch(text):
        way = float(found[2]) * _SECONDS[found[3]]
        return replaying.moment + (-way if found[1] == "-" else way)
    if found := _CLOCK.fullmatch(text):
        return _time_of_day(int(found[1]), int(found[2]), int(found[3] or 0), replaying)
    raise NotAMoment(f"write {_FORMS}")


def _time_of_day(hour: int, minute: int, second: int, replaying: Replaying) -> float:
    """The one that is nearest to the moment shown, among those inside the recording."""
    if hour > 23 or minute > 59 or second > 59:
        raise NotAMoment("a time of day goes up to 23:59:59")
    today = time.localtime(replaying.moment)
    midday = time.mktime((today.tm_year, today.tm_mon, today.tm_mday, hour, minute, second, 0, 0, -1))
    days = range(
        -1 - int((replaying.end - replaying.start) // _DAY),
        2 + int((replaying.end - replaying.start) // _DAY),
    )
    near = [midday + day * _DAY for day in days]
    inside = [each for each in near if replaying.start - 1 < each < replaying.end + 1]
    if not inside:
        raise NotAMoment(f"it goes from {shown.clock(replaying.start)} to {shown.clock(replaying.end)}")
    return min(inside, key=lambda each: abs(each - replaying.moment))


def seek_dialog(player: Player) -> Prompt:
    replaying = player.state()

    def wrong(text: str) -> str:
        try:
            moment_of(text, replaying)
        except NotAMoment as error:
            return str(error)
        return ""

    about = [
        f"{shown.plain(replaying.name)} goes from {shown.clock(replaying.start)} to {shown.clock(replaying.end)}.",
        f"Write {_FORMS}.",
    ]
    return Prompt("Go to", about, "", wrong)
