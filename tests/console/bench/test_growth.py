"""`arc bench growth`: what is told from times, and a small run of it. No time is asserted."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from arc.console.bench.fit import ERRORS, SHARE, Line, exponent, line, word
from arc.console.bench.growth import fits_of
from arc.console.bench.result import read
from arc.engine.telemetry.sweeps import PARTS, SNAPSHOT, STEP, Axis, Sweep, Swept, Visit
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.peers.make_checkpoint import TINY, write_checkpoint

from ..test_control_commands import run, until
from ..top.terminal import ARC

TIMES = st.floats(1e-6, 1.0)
PLACES = st.lists(st.integers(0, 20_000), min_size=2, max_size=9, unique=True)


def noisy(rng: random.Random, y: float, noise: float) -> float:
    return y * (1 + rng.uniform(-noise, noise))


@given(PLACES, TIMES, st.floats(0, 1e-3), st.integers(2, 5))
def test_a_line_without_noise_is_found_again(
    places: list[int], constant: float, slope: float, visits: int
) -> None:
    points = [(float(x), constant + slope * x) for x in places] * visits
    fitted = line(points)
    for x, y in points:
        assert fitted.at(x) == pytest.approx(y, rel=1e-6)
    assert fitted.error * (max(places) - min(places)) <= 1e-6 * max(y for _, y in points)


@given(st.integers(0, 10_000), TIMES, st.floats(0.5, 500.0), st.floats(0.01, 0.2))
def test_the_slope_lies_within_some_errors_of_the_true_one(
    seed: int, constant: float, factor: float, noise: float
) -> None:
    """Six errors: by chance once in millions, and hypothesis does not try so often."""
    rng = random.Random(seed)
    slope = constant * factor / 256
    places = (1.0, 4.0, 16.0, 64.0, 256.0)
    fitted = line([(x, noisy(rng, constant + slope * x, noise)) for _ in range(12) for x in places])
    assert abs(fitted.slope - slope) <= 6 * fitted.error


@given(PLACES, TIMES, st.integers(2, 5))
def test_what_is_constant_is_flat(places: list[int], constant: float, visits: int) -> None:
    fitted = line([(float(x), constant) for x in places] * visits)
    assert word(fitted, max(places) - min(places), constant) == "flat"


@given(st.integers(0, 10_000), TIMES)
def test_noise_alone_never_grows(seed: int, constant: float) -> None:
    rng = random.Random(seed)
    places = (0, 10, 100, 1000, 10_000)
    fitted = line([(float(x), noisy(rng, constant, 0.1)) for _ in range(12) for x in places])
    # Three errors come up once in some hundred times, but what they then add is still under a share of the step.
    assert word(fitted, 10_000, constant) != "grows" or fitted.slope * 10_000 < 2 * SHARE * constant


@given(TIMES, st.floats(0.06, 100.0), st.floats(0, 10.0))
def test_a_word_needs_both_the_errors_and_the_share(step: float, adds: float, errors: float) -> None:
    """`errors`: how many of them the slope is."""
    assume(abs(errors - ERRORS) > 0.01)
    slope = adds * step
    error = slope / errors if errors else math.inf
    assert word(Line(step, slope, error), 1.0, step) == ("grows" if errors > ERRORS else "cannot be told")
    small = SHARE * step / 2
    assert word(Line(step, small, small / (ERRORS + 0.1)), 1.0, step) == "flat"
    assert word(Line(step, small, small), 1.0, step) == "cannot be told"
    near = 0.8 * SHARE * step  # surely above zero, and not surely within the share
    assert word(Line(step, near, near / (ERRORS + 0.1)), 1.0, step) == "cannot be told"
    assert word(Line(step, -slope, 0.0), 1.0, step) == "cannot be told", "a fall is no growth, and not flat"


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("constant", [0.0, 1e-3, 1.0])
def test_a_power_is_found_again(power: float, constant: float) -> None:
    points = [(float(x), constant + 1e-2 * x**power) for x in (1, 2, 4, 8, 16, 32, 64)]
    assert exponent(points) == pytest.approx(power, abs=0.011)


def test_no_power_is_told_from_what_has_none() -> None:
    assert exponent([(1.0, 1.0), (2.0, 2.0), (4.0, 4.0)]) is None, "three places fit any power"
    assert exponent([(float(x), 2.0**x) for x in range(1, 30)]) is None, "the best lies outside"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_what_is_no_time_is_refused_by_name(bad: float) -> None:
    points = [(1.0, 1.0), (2.0, bad), (3.0, 1.0), (4.0, 2.0)]
    for fit in (line, exponent):
        with pytest.raises(ValueError, match="is no time to fit"):
            fit(points)


@pytest.mark.parametrize("points", [[], [(1.0, 1.0), (2.0, 1.0)], [(1.0, 1.0)] * 9])
def test_too_little_for_a_slope_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="no slope"):
        line(points)


def made(axis: Axis, values: tuple[int, ...], seconds: dict[str, list[float]]) -> Swept:
    """Each part's time at each value, the same at both visits."""
    sweep = Sweep(
        model="m", axis=axis, values=values, rows=1, context=1, waiting=0, visits=2, steps=1, threads=None, seed=0
    )  # fmt: skip
    visits = [
        Visit(value=value, best=(times := {part: seconds[part][n] for part in seconds}), median=times)
        for n, value in enumerate(values)
    ]
    return Swept(
        sweep=sweep, model="m", parameters=1, dtype="float32", device="cpu", version="1", revision="abc",
        profile="default", page_size=8, threads=1, kernels={}, visits=(*visits, *visits),
    )  # fmt: skip


def test_a_part_is_held_against_the_whole_step() -> None:
    """A part that doubles and is a hundredth of the step is flat; the same growth in a part that matters is not."""
    values = (0, 100, 1000, 10_000)
    rises = [1 + value / 10_000 for value in values]
    seconds = {part: [1e-4] * 4 for part in (*PARTS, SNAPSHOT)}
    seconds["publish"] = [1e-4 * rise for rise in rises]
    seconds["schedule"] = [4e-3 * rise for rise in rises]
    seconds[STEP] = [sum(seconds[part][n] for part in PARTS) + 6e-3 for n in range(4)]
    fits = {each.part: each for each in fits_of(made("waiting", values, seconds))}
    assert {part for part, each in fits.items() if each.word == "grows"} == {"schedule", STEP}
    assert fits["publish"].word == "flat" and fits["publish"].ratio == pytest.approx(2)
    assert fits["schedule"].fitted.slope == pytest.approx(4e-7)
    assert fits["schedule"].exponent == pytest.approx(1, abs=0.011) and fits["publish"].exponent is None


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, seed=0)
    return folder


SMALL = ("--visits", "2", "--steps", "2", "--at-rows", "3", "--at-context", "40", "--threads", "1")


def test_a_small_run_has_every_point_and_every_fit(tiny: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "g.json", tmp_path / "g.png"
    text = run(
        "bench", "growth", "--model", str(tiny), "--rows", "1,2,5", "--contexts", "32..128", "--waiting", "0,7,60",
        *SMALL, "--out", str(out), "--plot", str(picture),
    ).output  # fmt: skip
    found = read(out)
    assert [cell.name for cell in found.cells] == [
        *(f"rows {n}" for n in (1, 2, 5)),
        *(f"context {n}" for n in (32, 64, 128)),
        *(f"waiting {n}" for n in (0, 7, 60)),
    ]
    assert found.cells[8].labels == {"sweep": "waiting", "rows": 3, "context": 40, "waiting": 60}
    for cell in found.cells:
        assert len(cell.counted) == 2 * (len(PARTS) + 2)
        assert all(isinstance(value, float) and value > 0 for value in cell.counted.values())
    assert len(found.notes) == 3 * (len(PARTS) + 2)
    assert found.server is not None and found.server.model == tiny.name
    assert {cell.revision for cell in found.cells} == {found.server.revision}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "a step, by waiting" in text and "waiting: 3 rows, context 40; ms a step" in text


def test_one_sweep_alone(tiny: Path) -> None:
    arguments = ("--model", str(tiny), "--sweep", "waiting", "--waiting", "0,5", *SMALL, "--json")
    found = json.loads(run("bench", "growth", *arguments).output)
    assert [cell["name"] for cell in found["cells"]] == ["waiting 0", "waiting 5"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--rows", "0,2"], 2, "from 1"),
        (["--rows", "4"], 2, "two at the least"),
        (["--rows", "4,2"], 2, "ascending"),
        (["--rows", "2,2"], 2, "ascending"),
        (["--contexts", "0..8"], 2, "no numbers"),
        (["--waiting", "few"], 2, "no numbers"),
        (["--visits", "1"], 2, "x>=2"),
        (["--sweep", "row"], 2, "rows"),
        (["--plot", "g.svg"], 1, "FILE.png"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(arguments: list[str], code: int, said: str) -> None:
    assert said in run("bench", "growth", *arguments, code=code).output


def test_a_context_beyond_the_model_is_said_with_its_limit(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", str(tiny), "--sweep", "context", "--contexts", "64,600", *SMALL)
    assert "measures context" in run("bench", "growth", *arguments, code=1).output
    assert "512 tokens that the model was made for" in capfd.readouterr().err


def test_a_bench_that_is_terminated_leaves_no_process(tiny: Path) -> None:
    command = [*ARC, "bench", "growth", "--model", str(tiny), "--sweep", "rows", "--visits", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def children() -> list[int]:
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return [int(each) for each in found.split()]

    until(lambda: bool(children()))
    (child,) = children()
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{child}").exists()
