"""The profiler on a real engine: every site exists, the tree is the documented one, and results are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from arc.engine.control.commands import Actor, SetFlags
from arc.engine.control.protocol import NA
from arc.engine.control.span_messages import SpanReport
from arc.engine.core.assembly import Assembly
from arc.engine.core.sites import sites_of
from arc.engine.profiler.sites import Role

from .living import complete, engine, request, until

ACTOR = Actor(uid=0, gid=0, pid=0)
ATTENTION = {"kv_down", "q_proj", "norm_rope", "cache_write", "absorb", "attend", "v_up", "o_proj"}


def turn(assembly: Assembly, *, on: bool, detail: str = "op") -> None:
    changes = {"profile.enabled": on, "profile.detail": detail}
    assembly.port.call(SetFlags(actor=ACTOR, changes=changes)).result(timeout=30)


async def report(assembly: Assembly) -> SpanReport:
    taken = assembly.port.published().taken
    assembly.port.request_publish()
    await until(lambda: assembly.port.published().taken > taken)
    found = assembly.port.spans(900.0)
    assert isinstance(found, SpanReport)
    return found


def names_under(found: SpanReport, kind: str, parent: str) -> list[str]:
    rows = next(each.spans for each in found.kinds if each.kind == kind)
    return [row.name for row in rows if row.path.rpartition("/")[0] == parent]


@pytest.mark.parametrize("backend", ["torch", "auto"])
async def test_the_tree_of_a_real_engine_is_the_documented_one(
    backend: str, tiny: Path, tmp_path: Path
) -> None:
    async with engine(tiny, tmp_path, kernels__backend=backend) as assembly:
        assert isinstance(assembly.port.spans(10.0), NA)
        turn(assembly, on=True)
        requests = [request(f"r{n}", list(range(5, 20 + 9 * n)), max_tokens=20) for n in range(4)]
        await complete(assembly, *requests)
        await complete(assembly, request("alone", [7, 8, 9, 10], max_tokens=3))
        found = await report(assembly)
        forward = "step/{}/pipeline.step/model_forward"
        for kind in ("decode", "prompt"):
            top = names_under(found, kind, "step")
            assert top == ["scheduler.inbox", "scheduler.schedule", kind, "sample", "publish"]
            layers = names_under(found, kind, forward.format(kind))
            assert {"mla_attn", "moe", "dense_mlp"} <= set(layers)
        assert set(names_under(found, "decode", forward.format("decode") + "/mla_attn")) == ATTENTION
        experts = set(names_under(found, "decode", forward.format("decode") + "/moe"))
        fused = {"dispatch", "shared", "combine"}  # where the backend does not time its own sections
        assert experts | set(found.not_timed) == {"gate", "experts", *fused}
        assert bool(found.not_timed) == (assembly.kernels.stamps is None)
        decode = next(each for each in found.kinds if each.kind == "decode")
        calls = {row.path: row.calls for row in decode.spans}
        config = assembly.engine.runner.model.config
        assert calls[forward.format("decode") + "/mla_attn"] == decode.steps * config.layers
        assert calls[forward.format("decode") + "/moe"] == decode.steps * sum(config.moe_layers)
        assert found.proof.verdict == "pass", found.proof.failures
        step = decode.spans[0]
        assert sum(row.host_self for row in decode.spans) == pytest.approx(step.wall, rel=1e-6)


async def test_the_spans_of_a_step_are_its_record_and_tokens_are_the_same(tiny: Path, tmp_path: Path) -> None:
    requests = [request(f"r{n}", list(range(5, 20 + 9 * n)), max_tokens=30) for n in range(6)]
    async with engine(tiny, tmp_path) as plain:
        expected = [tokens for tokens, _ in await complete(plain, *requests)]
    async with engine(tiny, tmp_path, profile__enabled="on", profile__detail="op") as assembly:
        assert [tokens for tokens, _ in await complete(assembly, *requests)] == expected
        found = await report(assembly)
        records = list(assembly.port.step_ring)
        assert sum(kind.steps for kind in found.kinds) == len(records)
        assert sum(kind.rows for kind in found.kinds) == sum(record.rows for record in records)
        wall = sum(kind.spans[0].wall for kind in found.kinds)
        recorded = sum(record.wall for record in records)
        assert wall >= recorded, "the span has the border in it, and all of the publishing"
        seconds = assembly.engine.counters.span_seconds
        assert seconds["step", "wall"] == pytest.approx(wall)
        assert {channel for _, channel in seconds} == {"wall", "host_self"}


async def test_turned_off_every_method_is_the_classs_own_again(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path) as assembly:
        sites = [site for site in sites_of(assembly.engine) if site.role is not Role.WAIT]
        before = [getattr(site.owner, site.method).__func__ for site in sites]
        turn(assembly, on=True)
        assert all(site.method in vars(site.owner) for site in sites)
        await complete(assembly, request("a", [3, 4, 5]))
        turn(assembly, on=False)
        for site, function in zip(sites, before, strict=True):
            assert site.method not in vars(site.owner)
            assert getattr(site.owner, site.method).__func__ is function
        recorded = (await report(assembly)).kinds
        await complete(assembly, request("b", [3, 4, 5]))
        assert (await report(assembly)).kinds == recorded


async def test_a_step_that_fails_is_not_kept_and_the_next_ones_are(tiny: Path, tmp_path: Path) -> None:
    async with engine(tiny, tmp_path) as assembly:
        turn(assembly, on=True, detail="layer")
        model = assembly.engine.runner.model
        own = model.embed
        model.embed = lambda _ids: (_ for _ in ()).throw(RuntimeError("no such row"))  # type: ignore[method-assign]
        ((_, finish),) = await complete(assembly, request("a", [3, 4, 5]))
        assert "no such row" in (finish.detail or "")
        model.embed = own  # type: ignore[method-assign]
        await complete(assembly, request("b", [3, 4, 5], max_tokens=4))
        found = await report(assembly)
        assert found.proof.verdict == "pass", found.proof.failures
        assert sum(kind.steps for kind in found.kinds) == assembly.engine.steps - 1
