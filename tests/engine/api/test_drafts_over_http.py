"""Speculation seen by a client: several tokens a step arrive together, and nothing that they carry differs for it.

fp32, as in tests/engine/core/test_speculation.py; the answers of depth 0 are what those of the others are held to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from arc.engine.core.interface import Receive
from arc.engine.folder import CARRIED
from arc.engine.sequence import FinishReason, Output, Request
from tokenizers import Tokenizer

from tests.engine.core.living import until

from .test_real_engine import Real, idle, serving

PROMPT = "In the beginning God created the heaven and the earth. And the earth was"
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
DRAWN: dict[str, Any] = {"temperature": 0.8, "seed": 11, "ignore_eos": True}
DEPTHS = (1, 2, 3, 4)


@dataclass
class Bursts:
    """Of each sequence in the order of submission, how many tokens the API got at a time."""

    sizes: list[list[int]] = field(default_factory=list)

    def cut(self, which: int, used: int) -> bool:
        """Whether more came together with the last of the `used` first tokens of that sequence."""
        total = 0
        for size in self.sizes[which]:
            total += size
            if total >= used:
                return total > used
        raise AssertionError(f"{used} tokens of {total}")


@asynccontextmanager
async def speculating(folder: Path, depth: int) -> AsyncIterator[tuple[Real, Bursts]]:
    async with serving(CARRIED, folder, spec__depth=depth) as real:
        bursts = Bursts()
        submit = real.assembly.handle.submit

        def watched(request: Request, receive: Receive) -> None:
            mine: list[int] = []
            bursts.sizes.append(mine)

            def received(output: Output) -> None:
                mine.append(len(output.token_ids))
                receive(output)

            submit(request, received)

        real.assembly.handle.submit = watched  # type: ignore[method-assign]
        yield real, bursts


async def whole(real: Real, **body: Any) -> dict[str, Any]:
    async with real.http.post(
        f"{real.url}/v1/completions", json={"prompt": PROMPT, "return_token_ids": True} | body
    ) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def streamed(real: Real, **body: Any) -> dict[str, Any]:
    """The chunks put together to the form of the whole answer."""
    *chunks, done = await real.stream(
        prompt=PROMPT, return_token_ids=True, stream_options={"include_usage": True}, **body
    )
    assert done == b"data: [DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            choice = choices.setdefault(piece["index"], {"text": "", "token_ids": [], "finish_reason": None})
            assert choice["finish_reason"] is None, "nothing comes after the end"
            choice["text"] += piece["text"]
            choice["token_ids"] += piece["token_ids"]
            choice["finish_reason"] = piece["finish_reason"]
            choice["stop_reason"] = piece["stop_reason"]
            if piece.get("logprobs"):
                kept = choice.setdefault("logprobs", {})
                for name, values in piece["logprobs"].items():
                    kept.setdefault(name, []).extend(values)
    return {"choices": [choices[index] for index in sorted(choices)], "usage": chunks[-1]["usage"]}


ASKED = {"whole": whole, "streamed": streamed}


def said(answer: dict[str, Any]) -> list[tuple[str, list[int], str, Any]]:
    return [
        (each["text"], each["token_ids"], each["finish_reason"], each["stop_reason"])
        for each in answer["choices"]
    ]


def tokens_until(tokens: list[int], stop: str) -> int:
    """How many tokens it takes until `stop` stands in their text."""
    tokenizer = Tokenizer.from_file(str(CARRIED / "tokenizer.json"))
    return next(n for n in range(1, len(tokens) + 1) if stop in tokenizer.decode(tokens[:n]))


@pytest.mark.parametrize("depth", DEPTHS)
async def test_a_stop_string_inside_a_burst_ends_it_there(tmp_path: Path, depth: int) -> None:
    async with speculating(tmp_path, 0) as (real, _):
        (choice,) = (await whole(real, max_tokens=24, **GREEDY))["choices"]
    text, tokens = choice["text"], choice["token_ids"]
    stops = [text[at : at + 3] for at in range(4, len(text) - 3, 9)]
    async with speculating(tmp_path, depth) as (real, bursts):
        counters = real.assembly.handle.counters
        cuts = 0
        for stop in stops:
            used, before = tokens_until(tokens, stop), text[: text.index(stop)]
            for ask, kept in ((whole, False), (streamed, False), (streamed, True)):
                body = GREEDY | {"max_tokens": 24, "stop": stop, "include_stop_str_in_output": kept}
                answer = await ask(real, **body, logprobs=1)
                assert said(answer) == [(before + stop * kept, tokens[:used], "stop", stop)]
                assert answer["usage"]["completion_tokens"] == used
                logprobs = answer["choices"][0]["logprobs"]
                assert {len(values) for values in logprobs.values()} == {used}
                await until(lambda: idle(real.assembly))
                cuts += bursts.cut(-1, used)
        assert cuts, "none ended inside of a burst: nothing was tested"
        asked = 3 * len(stops)
        assert counters.finished[FinishReason.STOP] + counters.finished[FinishReason.LENGTH] == asked


async def test_a_stop_string_ends_one_choice_and_no_other(tmp_path: Path) -> None:
    """Of two choices that draw differently, one meets its stop string in a burst, the other goes on to its end."""
    body = DRAWN | {"n": 2, "max_tokens": 40}
    async with speculating(tmp_path, 0) as (real, _):
        first, second = (await whole(real, **body))["choices"]
    text = first["text"]
    stop = next(
        text[at : at + 3] for at in range(20, len(text) - 3) if text[at : at + 3] not in second["text"]
    )
    used = tokens_until(first["token_ids"], stop)
    wanted = [
        (text[: text.index(stop)], first["token_ids"][:used], "stop", stop),
        (second["text"], second["token_ids"], "length", None),
    ]
    for depth in DEPTHS:
        async with speculating(tmp_path, depth) as (real, _):
            for ask in (whole, streamed):
                answer = await ask(real, **body, stop=stop)
                assert said(answer) == wanted
                assert answer["usage"]["completion_tokens"] == used + 40


@pytest.mark.parametrize("kind", ASKED)
async def test_a_seed_draws_the_same_choices_at_every_depth(tmp_path: Path, kind: str) -> None:
    """Alone and in company, twice on one engine: n choices of one prompt, each with draws of its own."""
    body = DRAWN | {"n": 3, "max_tokens": 30, "logprobs": 2}
    wanted = None
    for depth in (0, *DEPTHS):
        async with speculating(tmp_path, depth) as (real, _):
            alone = await ASKED[kind](real, **body)
            again, _ = await asyncio.gather(ASKED[kind](real, **body), whole(real, max_tokens=50, **GREEDY))
            if wanted is None:
                wanted = alone
                assert len({each["text"] for each in wanted["choices"]}) == 3
            for answer in (alone, again):
                assert said(answer) == said(wanted), depth
                assert answer["usage"]["completion_tokens"] == 90
                assert answer["usage"]["prompt_tokens"] == wanted["usage"]["prompt_tokens"]
                for mine, theirs in zip(answer["choices"], wanted["choices"], strict=True):
                    assert_logprobs(mine["logprobs"], theirs["logprobs"])
            assert (sum(real.assembly.handle.counters.accepted) > 0) == (depth > 0)


@pytest.mark.parametrize("depth", DEPTHS)
async def test_max_tokens_ends_inside_a_burst(tmp_path: Path, depth: int) -> None:
    async with speculating(tmp_path, 0) as (real, _):
        (choice,) = (await whole(real, max_tokens=16, **GREEDY))["choices"]
    async with speculating(tmp_path, depth) as (real, bursts):
        free = (await whole(real, max_tokens=200, **GREEDY))["choices"][0]
        assert free["token_ids"][:16] == choice["token_ids"]
        shortened = 0
        for most in range(1, 17, 2):
            for ask in (whole, streamed):
                answer = await ask(real, max_tokens=most, **GREEDY)
                ((_, tokens, finish, _),) = said(answer)
                assert (tokens, finish) == (choice["token_ids"][:most], "length")
                assert answer["usage"]["completion_tokens"] == most
                assert sum(bursts.sizes[-1]) == most
                shortened += bursts.cut(0, most)
        assert shortened, "no end fell where a burst would have gone on"


def assert_logprobs(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine["tokens"] == theirs["tokens"]
    assert mine["text_offset"] == theirs["text_offset"]
    assert mine["token_logprobs"] == pytest.approx(theirs["token_logprobs"], abs=1e-3)
    for one, other in zip(mine["top_logprobs"], theirs["top_logprobs"], strict=True):
        assert one == pytest.approx(other, abs=1e-3)


@pytest.mark.parametrize("depth", DEPTHS)
async def test_chat_logprobs_have_an_entry_for_each_token_of_a_burst(tmp_path: Path, depth: int) -> None:
    body: dict[str, Any] = {
        "model": "austen", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24, "logprobs": True,
        "top_logprobs": 3, "extra_body": {"ignore_eos": True}, "temperature": 0,
    }  # fmt: skip
    found = []
    for each in (0, depth):
        async with speculating(tmp_path, each) as (real, _):
            answer = await real.openai.chat.completions.create(**body)
            stream = await real.openai.chat.completions.create(**body, stream=True)
            chunks = [chunk async for chunk in stream]
        content = answer.choices[0].logprobs.content  # pyright: ignore[reportOptionalMemberAccess]
        assert content is not None and len(content) == 24
        pieces = [entry for chunk in chunks for entry in (chunk.choices[0].logprobs or _NONE).content or ()]
        assert [entry.token for entry in pieces] == [entry.token for entry in content]
        assert [entry.logprob for entry in pieces] == pytest.approx(
            [entry.logprob for entry in content], abs=1e-3
        )
        found.append(content)
    for mine, theirs in zip(found[1], found[0], strict=True):
        assert (mine.token, mine.bytes) == (theirs.token, theirs.bytes)
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [top.token for top in mine.top_logprobs] == [top.token for top in theirs.top_logprobs]


@dataclass(frozen=True)
class _None:
    content: None = None


_NONE = _None()
