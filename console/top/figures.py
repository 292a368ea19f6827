"""How the console writes numbers: `--` is unknown, `0` is a real zero, and none is longer than its place."""

from __future__ import annotations

from ...engine.control.protocol import NA
from .. import shown

UNKNOWN = "--"
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float | None, width: int = 9) -> str:
    """1,164 where it fits in `width`, else 1.16M."""
    if value is None:
        return UNKNOWN
    text = f"{value:,.0f}"
    return text if len(text) <= width else _scaled(value)


def _scaled(value: float) -> str:
    for unit, letter in _UNITS:
        if abs(value) >= unit:
            return (
                f"{value / unit:.3g}{letter}" if abs(value) < 999.5 * unit else f"{value / unit:.0f}{letter}"
            )
    return f"{value:.0f}"


def decimal(value: float | None, width: int = 7) -> str:
    """Three significant digits at the least: 0.31, 26.9, 310, 1,310."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 99.95:
        return count(value, width)
    if size < 0.005:  # nor has a zero a sign
        return "0.00"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def milliseconds(seconds: float | NA | None, width: int = 7) -> str:
    return decimal(None if seconds is None or isinstance(seconds, NA) else seconds * 1000, width)


def percent(part: float | None, whole: float | None = 1.0) -> str:
    """Of nothing there is no share."""
    if part is None or not whole:
        return UNKNOWN
    return f"{100 * part / whole:.1f}"


def whole_percent(part: float | None, whole: float | None = 1.0) -> str:
    if part is None or not whole:
        return UNKNOWN
    return f"{100 * part / whole:.0f}"


def mebibytes(value: int | NA | None) -> str:
    return UNKNOWN if value is None or isinstance(value, NA) else f"{value / 2**20:,.0f}"


def age(value: float | None) -> str:
    return shown.optional_seconds(value)


def span(value: float) -> str:
    """A window's length: 30 s, 60 s, 5 min, 60 min."""
    return f"{value:.0f} s" if value <= 90 else f"{value / 60:.0f} min"
