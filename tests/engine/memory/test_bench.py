"""The allocator's bench: a leg starts on nothing, all do the same work, and nothing is said that was not measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from arc.engine.control.span_messages import Build
from arc.engine.core.assembly import Assembly
from arc.engine.memory import bench
from arc.engine.memory.bench import LegFailed, Report, Size, leg, table
from arc.engine.memory.legs import Leg, NotEmpty, Spec, Work, run, slope
from arc.engine.memory.pool import HostPool

from tests.engine.core.living import complete, engine, request

MIB = 1 << 20


def work(model: Path, **changes: object) -> Work:
    small = Work(model=str(model), rows=3, tokens=60, shortest=3, longest=60, output=20, threads=1)
    return msgspec.structs.replace(small, **changes)


async def test_a_leg_on_an_engine_that_has_worked_is_refused(tiny: Path, tmp_path: Path) -> None:
    spec = Spec(name="capped", enabled=True, cap_mib=4, work=work(tiny))
    async with engine(tiny, tmp_path, kernels__backend="torch", alloc__cap_mib=4) as assembly:
        done = await run(spec, assembly)
        assert done.tokens == 60 and done.steps >= 20 and len(done.resident) == 11
        with pytest.raises(NotEmpty, match="leg capped would start on"):
            await run(spec, assembly)
    async with engine(tiny, tmp_path, kernels__backend="torch") as assembly:
        await complete(assembly, request("a", [5] * 9, max_tokens=1))
        with pytest.raises(NotEmpty):
            await run(spec, assembly)

    def used(assembly: Assembly) -> None:
        pool = assembly.engine.runner.allocator
        assert isinstance(pool, HostPool)
        assert pool.take((2 * MIB,), torch.uint8) is not None

    async with engine(tiny, tmp_path, prepare=used) as assembly:
        with pytest.raises(NotEmpty, match="1 buffers taken and 2,097,152 bytes held"):
            await run(spec, assembly)


def test_all_legs_have_the_same_work(tiny: Path) -> None:
    one, two = (work(tiny, tokens=2600).requests(512) for _ in range(2))
    assert one == two and sum(each.params.max_tokens for each in one) >= 2600
    assert work(tiny, seed=1).requests(512) != one


def test_a_leg_runs_in_a_process_of_its_own(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = leg(Spec(name="off", enabled=False, cap_mib=None, work=work(tiny)))
    assert done.tokens == 60 and done.held is done.hits is done.cap is None
    assert done.build.flags["alloc.enabled"] is False and done.build.device == "cpu"
    capfd.readouterr()
    with pytest.raises(LegFailed, match="leg off ended"):
        leg(Spec(name="off", enabled=False, cap_mib=None, work=work(tiny / "none")))
    said = capfd.readouterr().err.strip()
    assert said == f"the engine of leg off cannot start: {tiny / 'none'} has no config.json"


def test_legs_of_two_revisions_are_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = iter(("abc", "abc-dirty"))

    def ran(spec: Spec) -> Leg:
        return made(spec.name, build=msgspec.structs.replace(BUILD, revision=next(revisions)))

    monkeypatch.setattr(bench, "leg", ran)
    with pytest.raises(LegFailed, match="leg unbounded ran abc-dirty, those before it abc"):
        bench.legs(work(tiny), repeats=1, cap_mib=None)


def test_the_slope_is_least_squares() -> None:
    assert slope([(n, 5 + 3 * n) for n in range(10)]) == pytest.approx(3)
    assert slope([(0, 1), (10, 1), (20, 1)]) == 0


BUILD = Build(
    version="1", revision="abc", dirty=False, model="m", dtype="bfloat16", device="cpu", profile="default", flags={}
)  # fmt: skip


def made(name: str, **changes: object) -> Leg:
    plain = Leg(
        name=name, build=BUILD, tokens=3000, prompt_tokens=9, seconds=2.0, cpu_seconds=3.0, steps=100,
        resident=tuple(n * MIB for n in range(11)), slope=2.0 * MIB / 1000, cap=None, held=None, bound=None,
        hits=None, misses=None, allocated=None, freed=None, bypassed=None, overdue=None,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def test_the_table_leaves_out_what_was_not_measured(tiny: Path) -> None:
    counts = {"held": 8 * MIB, "misses": 10, "allocated": 10, "freed": 4, "bypassed": 50, "overdue": 0}
    legs = (
        made("off"),
        made("unbounded", hits=90, bound=0, **counts),
        made("capped", hits=0, cap=4 * MIB, bound=3, **{**counts, "misses": 0}),
    )
    report = Report(
        torch="2", cores=2, work=work(tiny), legs=legs,
        sizes=(Size(mib=64, plain=3e-3, pooled=1e-3),),
    )  # fmt: skip
    lines = table(report).splitlines()
    rows = {
        line.split()[0]: line.split() for line in lines if line.startswith(("off", "unbounded", "capped"))
    }
    assert rows["off"][1:] == ["1,500", "(1,500..1,500)", "1.00", "+10", "+2.00"]
    assert rows["unbounded"][6:] == ["0.10", "0.04", "8", "0.9000"]
    assert rows["capped"][6:] == ["0.10", "0.04", "8"]  # nothing taken: no hit rate
    assert any("cap 4 MiB, kept to 3 times" in line for line in lines)
    assert [line.split()[1:] for line in lines if line.startswith("  off")] == [[str(n) for n in range(11)]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens", "2599"],
        ["--cap-mib", "0"],
        ["--cap-mib", "-4"],
        ["--cap-mib", "2g"],
        ["--rows", "0"],
        ["--output", "0"],
        ["--repeats", "0"],
        ["--threads", "-1"],
        ["--prompt", "9", "8"],
        ["--prompt", "0", "8"],
    ],
)
def test_senseless_arguments_are_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
