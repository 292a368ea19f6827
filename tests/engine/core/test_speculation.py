"""Speculation on the carried model: more tokens a step, and never another token.

fp32, so that the number of query tokens in a batch decides no near tie between two logits.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from arc.engine.config import Refused
from arc.engine.control.commands import Actor, SetFlags
from arc.engine.control.protocol import NA
from arc.engine.core.assembly import Assembly
from arc.engine.core.drafter import INCOMPLETE
from arc.engine.folder import CARRIED, CheckpointError
from arc.engine.sequence import Finish, FinishReason, Request, TokenLogprob
from tokenizers import Tokenizer

from .living import (
    assert_all_pages_free,
    assert_nothing_is_kept,
    complete,
    engine,
    read,
    request,
    submit,
    until,
)

ACTOR = Actor(uid=0, gid=0, pid=1, reason="test")
TEXTS = (
    "It was a fine morning, and the",
    "In the beginning God created the heaven and the earth. And the earth was",
    "And it came to pass, that",
    '"My dear Mr. Bennet," said his lady to him one day, "have you heard that',
    "x",
)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(CARRIED / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


def asked(prompts: list[list[int]], stop: int) -> list[Request]:
    """Each way to end, in the middle of a burst too, and each edit of the logits, greedy and drawn."""
    plain = [request(f"plain {i}", prompt, max_tokens=40) for i, prompt in enumerate(prompts)]
    brief = [request(f"brief {n}", prompts[n % 5], max_tokens=n) for n in range(1, 8)]
    ways: dict[str, dict[str, Any]] = {
        "eos": {"ignore_eos": False, "max_tokens": 200},
        "stop ids": {"stop_token_ids": (stop,), "max_tokens": 60},
        "least": {"stop_token_ids": tuple(range(2, 300)), "min_tokens": 9, "max_tokens": 30},
        "logprobs": {"logprobs": 3},
        "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2},
        "bias": {"logit_bias": {262: 3.0, 270: -50.0}},
        "drawn": {"temperature": 0.8, "seed": 7},
        "drawn too": {"temperature": 0.8, "seed": 8},
        "drawn from few": {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 9},
        "all": {
            "temperature": 0.7, "seed": 3, "top_k": 40, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
            "logit_bias": {270: 2.0}, "logprobs": 2, "min_tokens": 5, "stop_token_ids": (18,),
        },
    }  # fmt: skip
    special = [request(name, prompts[1], **({"max_tokens": 24} | way)) for name, way in ways.items()]
    return [*plain, *brief, *special]


Said = tuple[list[int], list[TokenLogprob], Finish]


async def answers(it: Assembly, requests: list[Request]) -> dict[str, Said]:
    async def one(each: Request) -> Said:
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        async for output in submit(it, each):
            tokens += output.token_ids
            logprobs += output.logprobs or ()
            if output.finish is not None:
                return tokens, logprobs, output.finish
        raise AssertionError("no end")

    return dict(zip((each.id for each in requests), await asyncio.gather(*map(one, requests)), strict=True))


def assert_same(got: dict[str, Said], want: dict[str, Said]) -> None:
    for name, (tokens, logprobs, finish) in want.items():
        assert got[name][0] == tokens, name
        assert got[name][2] == finish, name
        assert [each.token_id for each in got[name][1]] == [each.token_id for each in logprobs], name
        for mine, theirs in zip(got[name][1], logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3), name


async def test_every_depth_gives_the_tokens_of_depth_0_and_several_a_step(
    prompts: list[list[int]], tmp_path: Path
) -> None:
    async with engine(CARRIED, tmp_path) as it:
        ((told, _),) = await complete(it, request("told", prompts[1], max_tokens=40))
        stop = next(token for place, token in enumerate(told) if place > 8 and token not in told[:place])
        requests = asked(prompts, stop)
        want = await answers(it, requests)
        assert it.port.counters.drafted == [0, 0, 0, 0]
    assert len(want["logprobs"][1]) == 24
    assert want["stop ids"][2].reason is FinishReason.STOP
    for depth in (1, 2, 3, 4):
        async with engine(CARRIED, tmp_path, spec__depth=depth, sched__max_running=9) as it:
            assert_same(await answers(it, requests), want)
            counters = it.port.counters
            rates = [
                right / count
                for right, count in zip(counters.accepted, counters.drafted, strict=True)
                if count
            ]
            assert len(rates) == depth and rates[0] > 0.4  # real text: the head guesses well
            assert rates == sorted(rates, reverse=True)
            assert sum(map(len, (tokens for tokens, _, _ in want.values()))) == counters.generation_tokens
            assert counters.undrafted == {}
            assert_all_pages_free(it)
            assert_nothing_is_kept(it)


async def test_chunks_preemptions_and_cached_prefixes_change_no_token(
    prompts: list[list[int]], tmp_path: Path
) -> None:
    long = prompts[1] * 6
    requests = [
        request(f"r{i}", long[: 20 + 9 * i], max_tokens=200, temperature=0.6 * (i % 2), seed=i)
        for i in range(4)
    ]
    async with engine(CARRIED, tmp_path, cache__prefix="off") as it:
        want = await answers(it, requests)
    few: dict[str, Any] = {
        "sched__max_step_tokens": 24, "sched__prefill_chunk": 7, "cache__page_cap": 56, "sched__max_running": 8,
    }  # fmt: skip
    async with engine(CARRIED, tmp_path, spec__depth=3, **few) as it:
        assert_same(await answers(it, requests), want)
        assert_same(await answers(it, requests), want)
        assert it.port.counters.preemptions > 0
        assert it.port.counters.prefix_hits > 0
        assert it.port.counters.undrafted.keys() <= {"no free page for drafts"}
        assert_all_pages_free(it)


async def test_depth_changes_live_and_sequences_that_the_head_missed_go_on_without(
    prompts: list[list[int]], tmp_path: Path
) -> None:
    running = request("running", prompts[0] * 4, max_tokens=150)
    later = request("later", prompts[0] * 4, max_tokens=30)
    async with engine(CARRIED, tmp_path) as it:
        want = await answers(it, [running])
        want |= await answers(it, [later])
    async with engine(CARRIED, tmp_path) as it:
        counters = it.port.counters
        stream = asyncio.create_task(answers(it, [running]))
        await until(lambda: counters.generation_tokens > 10)
        await asyncio.wrap_future(it.port.call(SetFlags(actor=ACTOR, changes={"spec.depth": 3})))
        assert_same(await answers(it, [later]), {"later": want["later"]})
        assert (
            counters.drafted[2] > 0
        )  # the new one drafts, although its prefix was cached without predictions
        assert counters.prefix_hits == 0
        await until(lambda: counters.undrafted.get(INCOMPLETE, 0) > 0)  # the old one cannot
        again = await answers(it, [later])
        assert_same(again, {"later": want["later"]})
        assert counters.prefix_hits > 0  # of what was computed with predictions
        await asyncio.wrap_future(it.port.call(SetFlags(actor=ACTOR, changes={"spec.depth": 0})))
        assert_same(await stream, {"running": want["running"]})
        drafted = list(counters.drafted)
        assert_same(await answers(it, [later]), {"later": want["later"]})
        assert counters.drafted == drafted
        seen = it.port.published().taken
        it.port.request_publish()
        await until(lambda: it.port.published().taken > seen)
        assert it.port.published().speculation.drafted == tuple(drafted)
        assert_all_pages_free(it)


async def test_a_client_that_goes_in_the_middle_of_a_draft_leaves_nothing(
    prompts: list[list[int]], tmp_path: Path
) -> None:
    async with engine(CARRIED, tmp_path, spec__depth=3) as it:
        for round_ in range(6):
            streams = [submit(it, request(f"{round_} {i}", prompts[i % 5], max_tokens=500)) for i in range(4)]
            for stream in streams[: round_ % 4 + 1]:
                await anext(stream)
            for i in range(4):
                it.handle.cancel(f"{round_} {i}", FinishReason.DISCONNECTED)
            ends = [(await read(stream))[1].reason for stream in streams]
            assert ends == [FinishReason.DISCONNECTED] * 4
        await until(lambda: it.port.counters.running == 0)
        assert_all_pages_free(it)
        assert_nothing_is_kept(it)
        assert len((await complete(it, request("after", prompts[0])))[0][0]) == 8


@pytest.mark.parametrize("part", ["first", "further"])
async def test_a_fault_of_the_drafter_ends_its_step_and_nothing_else(
    prompts: list[list[int]], tmp_path: Path, part: str
) -> None:
    left = [3]

    def prepare(it: Assembly) -> None:
        drafter = it.engine.runner.drafter
        whole = getattr(drafter, part)

        def failing(*args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("the head fails")
            return whole(*args)

        setattr(drafter, part, failing)

    async with engine(CARRIED, tmp_path, spec__depth=2, prepare=prepare) as it:
        ((_, finish),) = await complete(it, request("bad", prompts[1], max_tokens=60))
        assert finish.reason is FinishReason.FAULT
        assert finish.detail is not None and "the head fails" in finish.detail
        assert_all_pages_free(it)
        assert it.engine.scheduler.pages.cached == 0  # what the head did not see is not to be found
        ((tokens, finish),) = await complete(it, request("good", prompts[1]))
        assert (len(tokens), finish.reason) == (8, FinishReason.LENGTH)


async def test_a_draft_whose_logits_are_not_finite_ends_its_row_alone(
    prompts: list[list[int]], tmp_path: Path
) -> None:
    def prepare(it: Assembly) -> None:
        model, cache = it.engine.runner.model, it.engine.runner.cache
        whole = model.forward

        @torch.inference_mode()
        def forward(batch: Any, cache_: Any) -> Any:
            output = whole(batch, cache_)
            begin, end = batch.query_starts[:2]
            if batch.decode_rows == 2 and end - begin > 1:  # of the first row, the last query alone
                cache.layers[0][batch.slots[end - 1]] = float("nan")
                output.logits[end - 1] = float("nan")
            return output

        model.forward = forward  # type: ignore[method-assign]

    async with engine(CARRIED, tmp_path, spec__depth=2) as it:
        expected = await complete(it, request("beside", prompts[1], max_tokens=60))
    async with engine(CARRIED, tmp_path, spec__depth=2, prepare=prepare) as it:
        ends = await complete(
            it,
            request("bad", prompts[0], max_tokens=60),
            request("beside", prompts[1], max_tokens=60),
        )
        assert ends[0][1].reason is FinishReason.FAULT
        assert ends[1:] == expected
        assert_all_pages_free(it)
        cache = it.engine.runner.cache
        assert cache.prediction is not None
        assert all(bool(torch.isfinite(layer).all()) for layer in (*cache.layers, cache.prediction))


async def test_a_checkpoint_without_the_layer_refuses_by_name(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"spec.depth is 2, but the checkpoint has no prediction layer"):
        async with engine(tiny, tmp_path, spec__depth=2):
            pass
    async with engine(tiny, tmp_path) as it:
        refused = it.port.call(SetFlags(actor=ACTOR, changes={"spec.depth": 1}))
        with pytest.raises(Refused) as caught:
            await asyncio.wrap_future(refused)
        (error,) = caught.value.errors
        assert error.flag == "spec.depth" and "num_nextn_predict_layers" in error.message
        depth = it.port.published().speculation.depth
        assert isinstance(depth, NA) and "no prediction layer" in depth.na


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_lost_in_a_storm_of_drafts(tmp_path: Path, seed: int) -> None:
    """Arrivals, cancels and flag changes, the depth among them, at random over few pages."""
    rng = random.Random(seed)
    async with engine(CARRIED, tmp_path, cache__page_cap=40, sched__max_running=6, spec__depth=2) as it:
        tasks = []
        for i in range(40):
            prompt = [rng.randrange(2, 6)] * rng.randint(1, 100)
            stream = submit(it, request(f"r{i}", prompt, max_tokens=rng.randint(1, 50)))
            tasks.append(asyncio.create_task(read(stream)))
            if rng.random() < 0.4:
                it.handle.cancel(f"r{rng.randrange(i + 1)}", FinishReason.DISCONNECTED)
            if rng.random() < 0.5:
                name, value = rng.choice(
                    [
                        ("spec.depth", rng.randint(0, 4)), ("cache.page_cap", rng.randint(20, 60)),
                        ("admission.policy", rng.choice(["ragged", "bucketed"])), ("cache.prefix", rng.random() < 0.5),
                        ("admission.bucket_losers", rng.choice(["wait", "preempt"])),
                        ("sched.max_running", rng.randint(1, 10)), ("sched.prefill_chunk", rng.choice([5, 64])),
                    ]
                )  # fmt: skip
                it.port.call(SetFlags(actor=ACTOR, changes={name: value}))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.02)
        async with asyncio.timeout(300):
            ends = [finish.reason for _, finish in await asyncio.gather(*tasks)]
        assert set(ends) <= {FinishReason.LENGTH, FinishReason.DISCONNECTED}
        await until(lambda: it.port.counters.running == 0)
        assert_all_pages_free(it)
        assert sum(it.port.counters.finished.values()) == 40
        assert_nothing_is_kept(it)
