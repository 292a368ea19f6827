"""What every command's parameters refuse, found by walking all commands: a new one is held to the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from arc.console.lazy import LazyCommand
from arc.console.main import COMMANDS
from arc.console.parameters import Line


def _commands() -> Iterator[tuple[str, click.Command]]:
    waiting: list[tuple[str, click.Command]] = [
        (name, LazyCommand(name, target, summary)) for name, (target, summary) in COMMANDS.items()
    ]
    while waiting:
        name, command = waiting.pop()
        if isinstance(command, LazyCommand):
            command = command.load()
        yield name, command
        if isinstance(command, click.Group):
            waiting += [(f"{name} {each}", inner) for each, inner in command.commands.items()]


_PARAMETERS = {
    f"{name} {parameter.opts[0]}": parameter for name, command in _commands() for parameter in command.params
}
_NUMBERS = [name for name, each in _PARAMETERS.items() if isinstance(each.type, click.types.FloatParamType)]
_OUT = [name for name in _PARAMETERS if name.endswith(" --out")]
_WHY = [name for name in _PARAMETERS if name.endswith(" --why")]


def test_the_walk_finds_the_parameters() -> None:
    assert {"top --hz", "bench run --rate", "ab --alpha", "bench admission --tolerance"} <= set(_NUMBERS)
    assert {"ab --out", "profile --out", "bench run --out", "bench spec --out"} <= set(_OUT)
    assert {"set --why", "drain --why"} <= set(_WHY)


def test_the_page_says_which_commands_print_json() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "operations.md").read_text().split())
    without = re.search(r"All but (.*?) take `--json`", page)
    assert without is not None
    said = {name.removeprefix("arc ") for name in re.findall(r"`(.*?)`", without[1])}
    assert said == {name for name in COMMANDS if f"{name} --json" not in _PARAMETERS}


@pytest.mark.parametrize("name", _NUMBERS)
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_number_is_finite(name: str, text: str) -> None:
    parameter = _PARAMETERS[name]
    with pytest.raises(click.BadParameter):
        parameter.type.convert(text, parameter, None)


@pytest.mark.parametrize("name", _OUT)
def test_a_result_that_could_not_be_kept_is_refused_before_it_is_measured(name: str, tmp_path: Path) -> None:
    parameter = _PARAMETERS[name]
    with pytest.raises(click.BadParameter, match="No such file or directory"):
        parameter.type.convert(str(tmp_path / "missing" / "file"), parameter, None)
    assert parameter.type.convert(str(tmp_path / "file"), parameter, None) == tmp_path / "file"


@pytest.mark.parametrize("name", _WHY)
def test_a_reason_is_a_line(name: str) -> None:
    assert isinstance(_PARAMETERS[name].type, Line)


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2J", "x" * 501, "\udcff", "\u2028"])
def test_a_line_has_no_more_than_people_read(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Line().convert(text, None, None)
    assert Line().convert("été, 500 → 8", None, None) == "été, 500 → 8"
