"""Colours. A theme gives each role of a line a style; state never stands on colour alone, so every theme is complete
as text, and with NO_COLOR only weight and reverse are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from .lines import Role


@dataclass(frozen=True, slots=True)
class Palette:
    """One colour a meaning; `need` is the accent that says: this needs you."""

    text: str
    dim: str
    rule: str
    good: str
    need: str
    bad: str
    fill: str
    line: str
    mark: str
    cursor: str  # the background of the row under the cursor

    def styles(self) -> Mapping[Role, Style]:
        bad = Style(color=self.bad, bold=True, reverse=True)
        return {
            "text": Style(color=self.text),
            "dim": Style(color=self.dim),
            "rule": Style(color=self.rule),
            "title": Style(color=self.text, bold=True),
            "here": Style(color=self.text, bold=True, underline=False),
            "good": Style(color=self.good),
            "need": Style(color=self.need, bold=True),
            "bad": bad,
            "fill": Style(color=self.fill),
            "line": Style(color=self.line),
            "mark": Style(color=self.mark),
            "cursor": Style(bgcolor=self.cursor),
            "off": Style(color=self.rule),
        }


PALETTES: Mapping[str, Palette] = {
    "arc-dark": Palette(
        text="#d6dae0", dim="#7f8896", rule="#3f4754", good="#8fc99a", need="#f0b35a", bad="#ef6f6c", fill="#5b86b8",
        line="#e8ecf2", mark="#b8a1e3", cursor="#26303d",
    ),
    "arc-light": Palette(
        text="#1f242b", dim="#626b78", rule="#b9c0ca", good="#2a7a3d", need="#a85f00", bad="#b3261e", fill="#4a78ad",
        line="#1f242b", mark="#6a45b0", cursor="#dfe6ee",
    ),
    # The colours of Okabe and Ito (2008), which differ for all common forms of colour blindness.
    "arc-safe": Palette(
        text="#e4e4e4", dim="#8f8f8f", rule="#4a4a4a", good="#56b4e9", need="#e69f00", bad="#d55e00", fill="#0072b2",
        line="#f0e442", mark="#cc79a7", cursor="#303030",
    ),
    # The terminal's own 16 colours.
    "arc-ansi": Palette(
        text="default", dim="bright_black", rule="bright_black", good="green", need="yellow", bad="red", fill="blue",
        line="bright_white", mark="magenta", cursor="black",
    ),
}  # fmt: skip

THEMES: Mapping[str, Theme] = {
    "arc-dark": Theme(
        name="arc-dark", primary="#5b86b8", secondary="#7f8896", accent="#f0b35a", warning="#f0b35a", error="#ef6f6c",
        success="#8fc99a", foreground="#d6dae0", background="#12161c", surface="#181d25", panel="#1f2630", dark=True,
    ),
    "arc-light": Theme(
        name="arc-light", primary="#4a78ad", secondary="#626b78", accent="#a85f00", warning="#a85f00", error="#b3261e",
        success="#2a7a3d", foreground="#1f242b", background="#f7f8fa", surface="#eef0f4", panel="#e4e8ee", dark=False,
    ),
    "arc-safe": Theme(
        name="arc-safe", primary="#0072b2", secondary="#8f8f8f", accent="#e69f00", warning="#e69f00", error="#d55e00",
        success="#56b4e9", foreground="#e4e4e4", background="#101010", surface="#1a1a1a", panel="#242424", dark=True,
    ),
    "arc-ansi": replace(BUILTIN_THEMES["ansi-dark"], name="arc-ansi", accent="ansi_yellow"),
}  # fmt: skip

_MONOCHROME: Mapping[Role, Style] = {
    "text": Style(), "dim": Style(dim=True), "rule": Style(dim=True), "title": Style(bold=True),
    "here": Style(bold=True), "good": Style(), "need": Style(bold=True), "bad": Style(bold=True, reverse=True),
    "fill": Style(), "line": Style(bold=True), "mark": Style(bold=True), "cursor": Style(reverse=True),
    "off": Style(dim=True),
}  # fmt: skip


def styles_of(theme: str, *, colours: bool) -> Mapping[Role, Style]:
    return PALETTES[theme].styles() if colours else _MONOCHROME
