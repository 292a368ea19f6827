"""The API as the `openai` package sees it: answers, streams, usage, log-probabilities, errors."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import openai
import pytest
from arc.engine.core.interface import Draining, TooManyWaiting
from arc.engine.sequence import FinishReason

from .conftest import BOS, EOS, Serve, ids_of
from .scripted import ScriptedEngine, failing, output, saying


async def test_completion(serve: Serve):
    async with serve() as api:
        answer = await api.openai.completions.create(model="austen", prompt="abc", max_tokens=6)
    assert answer.choices[0].text == "abca"  # six tokens, of which two are <bos> and not shown
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        4,
        6,
        10,
    )
    assert (answer.object, answer.model, answer.system_fingerprint) == (
        "text_completion",
        "austen",
        "abc1234",
    )
    assert answer.id.startswith("cmpl-")


async def test_completion_defaults_to_sixteen_tokens_or_what_fits(serve: Serve):
    async with serve(ScriptedEngine(max_model_len=24)) as api:
        full = await api.openai.completions.create(model="austen", prompt=[97])
        short = await api.openai.completions.create(model="austen", prompt=[97] * 20)
    assert full.usage and full.usage.completion_tokens == 16
    assert short.usage and short.usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        ([97, 98], ["aba"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([[97, 98], [99]], ["aba", "ccc"]),
    ],
)
async def test_every_prompt_form(serve: Serve, prompt: Any, texts: list[str]):
    async with serve() as api:
        answer = await api.openai.completions.create(model="austen", prompt=prompt, max_tokens=3)
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == list(range(len(texts)))


async def test_n_choices_differ_in_seed_only_and_share_the_prompt_count(serve: Serve):
    engine = ScriptedEngine()
    async with serve(engine) as api:
        answer = await api.openai.completions.create(
            model="austen", prompt=["ab", "cd"], n=3, max_tokens=2, seed=2**63 - 2
        )
    assert [choice.text for choice in answer.choices] == ["a", "a", "a", "c", "c", "c"]
    seeds = [request.params.seed for request in engine.requests]
    assert seeds == [2**63 - 2, 2**63 - 1, -(2**63)] * 2
    assert len({request.id for request in engine.requests}) == 6
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)


async def test_cached_tokens_are_those_of_the_first_choice_of_each_prompt(serve: Serve):
    def script(request):  # the second choice finds in the cache what the first one computed
        yield output(request, 97, cached=0 if request.id.endswith("-0") else 2)
        yield output(request, 97, finish=saying_stop(), cached=0)

    def saying_stop():
        from arc.engine.sequence import Finish

        return Finish(reason=FinishReason.LENGTH)

    async with serve(ScriptedEngine(script)) as api:
        answer = await api.openai.completions.create(model="austen", prompt="ab", n=2, max_tokens=2)
        single = await api.openai.completions.create(model="austen", prompt=[97, 98], max_tokens=2)
    assert answer.usage and answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert single.usage and single.usage.prompt_tokens_details
    assert single.usage.prompt_tokens_details.cached_tokens == 2


async def test_echo_puts_the_prompt_first(serve: Serve):
    async with serve() as api:
        texts = await api.openai.completions.create(
            model="austen", prompt=["ab", "c"], echo=True, max_tokens=2
        )
        ids = await api.openai.completions.create(model="austen", prompt=[BOS, 120], echo=True, max_tokens=2)
        stream = await api.openai.completions.create(
            model="austen", prompt="ab", echo=True, max_tokens=3, stream=True
        )
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert [choice.text for choice in texts.choices] == ["aba", "cc"]
    assert ids.choices[0].text == "xx"
    assert streamed == "abab"


async def test_chat(serve: Serve):
    engine = ScriptedEngine(saying(*ids_of("hello"), EOS, stop_match=EOS))
    async with serve(engine) as api:
        answer = await api.openai.chat.completions.create(
            model="austen",
            messages=[
                {"role": "developer", "content": "be kind"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}],
                },
                {"role": "assistant", "content": None},
                {"role": "user", "content": "?", "name": "ann"},
            ],
        )
    message = answer.choices[0].message
    assert (message.role, message.content, message.refusal) == ("assistant", "hello", None)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage and answer.usage.completion_tokens == 6
    (request,) = engine.requests
    assert bytes(request.prompt).decode() == "[system]be kind[user]hi\nyou[assistant][user]?[assistant]"
    assert request.params.max_tokens == 512 - len(request.prompt)  # to the context's end


async def test_template_extras_of_vllm(serve: Serve):
    engine = ScriptedEngine()
    messages: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well, "}]
    async with serve(engine) as api:
        for extra in (
            {"add_generation_prompt": False},
            {"continue_final_message": True},
            {"chat_template_kwargs": {"extra": "!"}},
            {"add_special_tokens": True},
        ):
            await api.openai.chat.completions.create(
                model="austen", messages=messages, max_tokens=1, extra_body=extra
            )
    assert [bytes(r.prompt[r.prompt[0] == BOS :]).decode() for r in engine.requests] == [
        "[user]hi[assistant]well, ",
        "[user]hi[assistant]well, ",
        "[user]hi[assistant]well, [assistant]!",
        "[user]hi[assistant]well, [assistant]",
    ]
    assert [r.prompt[0] == BOS for r in engine.requests] == [False, False, False, True]


async def test_chat_stream_with_usage(serve: Serve):
    async with serve(ScriptedEngine(saying(*ids_of("hé!"), reason=FinishReason.LENGTH))) as api:
        stream = await api.openai.chat.completions.create(
            model="austen",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert [c.choices[0].delta.role for c in chunks[:-1]] == ["assistant", None, None, None]
    assert [c.choices[0].delta.content for c in chunks[:-1]] == ["", "h", "é", "!"]
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None, None, None, "length"]
    assert [c.usage for c in chunks[:-1]] == [None] * 4
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1


async def test_stream_without_usage_has_no_usage_member(serve: Serve):
    async with serve() as api:
        stream = await api.openai.completions.create(model="austen", prompt="a", max_tokens=3, stream=True)
        chunks = [chunk async for chunk in stream]
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "a"


async def test_usage_on_every_chunk(serve: Serve):
    async with serve() as api:
        stream = await api.openai.completions.create(
            model="austen",
            prompt=[97],
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        )
        counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
    assert counts == [1, 2, 3, 3]


async def test_streamed_choices_join_to_the_whole_answer(serve: Serve):
    async with serve() as api:
        ask: Any = {"model": "austen", "prompt": ["ab", "wxyz"], "n": 2, "max_tokens": 9, "logprobs": 2}
        whole = await api.openai.completions.create(**ask)
        texts: dict[int, str] = {}
        tokens: dict[int, list[str]] = {}
        offsets: dict[int, list[int]] = {}
        finish: dict[int, str] = {}
        async for chunk in await api.openai.completions.create(**ask, stream=True):
            (choice,) = chunk.choices
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            assert choice.logprobs is not None
            tokens.setdefault(choice.index, []).extend(choice.logprobs.tokens or [])
            offsets.setdefault(choice.index, []).extend(choice.logprobs.text_offset or [])
            if choice.finish_reason:
                finish[choice.index] = choice.finish_reason
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert choice.logprobs is not None
        assert tokens[choice.index] == choice.logprobs.tokens
        assert offsets[choice.index] == choice.logprobs.text_offset
        assert finish[choice.index] == choice.finish_reason


async def test_completion_logprobs(serve: Serve):
    euro = list("€".encode())
    engine = ScriptedEngine(saying(97, *euro, EOS))
    async with serve(engine) as api:
        answer = await api.openai.completions.create(model="austen", prompt="x", logprobs=2, echo=False)
        none = await api.openai.completions.create(model="austen", prompt="x", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "a€"
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "<eos>"]
    assert logprobs.text_offset == [0, 1, 1, 1, 2]
    assert logprobs.token_logprobs == [-1.0] * 5
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"a": -1.0, "b": -2.0}
    assert logprobs.top_logprobs[1] == {"bytes:\\xe2": -1.0, "bytes:\\xe3": -2.0}
    first = none.choices[0].logprobs
    assert first is not None
    assert first.top_logprobs is not None
    assert first.top_logprobs[0] == {"a": -1.0}  # the chosen one alone


async def test_chat_logprobs(serve: Serve):
    async with serve(ScriptedEngine(saying(*ids_of("hé"), EOS))) as api:
        answer = await api.openai.chat.completions.create(
            model="austen", messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=1
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(byte for item in logprobs.content for byte in item.bytes or []) == "hé<eos>".encode()
    assert [len(item.top_logprobs) for item in logprobs.content] == [1, 1, 1, 1]
    assert logprobs.content[0].token == logprobs.content[0].top_logprobs[0].token == "h"


async def test_an_impossible_token_has_a_finite_logprob(serve: Serve):
    from arc.engine.sequence import Finish, Output, TokenLogprob

    def script(request):
        never = TokenLogprob(97, -math.inf, ((98, -0.5), (97, -math.inf)))
        yield Output(
            request_id=request.id,
            token_ids=(97,),
            logprobs=(never,),
            finish=Finish(reason=FinishReason.LENGTH),
        )

    async with serve(ScriptedEngine(script)) as api:
        answer = await api.openai.completions.create(model="austen", prompt="x", logprobs=2)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs == [-9999.0]
    assert answer.choices[0].logprobs.top_logprobs == [{"b": -0.5, "a": -9999.0}]


async def test_tokens_as_ids(serve: Serve):
    async with serve(ScriptedEngine(saying(97, 98, EOS))) as api:
        answer = await api.openai.completions.create(
            model="austen", prompt="x", logprobs=1, extra_body={"return_tokens_as_token_ids": True}
        )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["token_id:97", "token_id:98", f"token_id:{EOS}"]
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2]


async def test_stop_string_across_tokens_cancels_in_the_engine(serve: Serve):
    engine = ScriptedEngine(saying(*ids_of("one. two. three."), EOS))
    async with serve(engine) as api:
        answer = await api.openai.completions.create(
            model="austen", prompt="x", stop=["two.", "!"], max_tokens=99
        )
        kept = await api.openai.completions.create(
            model="austen", prompt="x", stop="two.", extra_body={"include_stop_str_in_output": True}
        )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("one. ", "stop")
    assert choice.model_extra == {"stop_reason": "two."}
    assert answer.usage and answer.usage.completion_tokens == len("one. two.")
    assert kept.choices[0].text == "one. two."
    assert set(engine.cancelled.values()) == {FinishReason.STOP}
    assert len(engine.cancelled) == 2


@pytest.mark.parametrize(("keep", "text"), [(False, "ab"), (True, "ab#")])
async def test_stop_token_is_not_text_unless_kept(serve: Serve, keep: bool, text: str):
    engine = ScriptedEngine(saying(97, 98, 35, stop_match=35))
    async with serve(engine) as api:
        answer = await api.openai.completions.create(
            model="austen",
            prompt="x",
            extra_body={"stop_token_ids": [35], "include_stop_str_in_output": keep},
        )
    assert answer.choices[0].text == text
    assert answer.choices[0].model_extra == {"stop_reason": 35}
    assert answer.usage and answer.usage.completion_tokens == 3
    assert engine.requests[0].params.stop_token_ids == (35,)


async def test_token_ids_are_returned_whole_and_streamed(serve: Serve):
    async with serve(ScriptedEngine(saying(97, *"é".encode(), EOS))) as api:
        ask: Any = {"model": "austen", "prompt": "x", "extra_body": {"return_token_ids": True}}
        whole = await api.openai.completions.create(**ask)
        stream = await api.openai.completions.create(**ask, stream=True)
        extras = [chunk.choices[0].model_extra or {} async for chunk in stream]
        chat = await api.openai.chat.completions.create(
            model="austen", messages=[{"role": "user", "content": "x"}], extra_body={"return_token_ids": True}
        )
    expected = [97, *"é".encode(), EOS]
    assert (whole.choices[0].model_extra or {})["token_ids"] == expected
    assert (whole.choices[0].model_extra or {})["prompt_token_ids"] == [BOS, 120]
    assert [i for extra in extras for i in extra["token_ids"]] == expected
    assert [extra.get("prompt_token_ids") for extra in extras] == [[BOS, 120], None, None]
    assert (chat.model_extra or {})["prompt_token_ids"] == ids_of("[user]x[assistant]")
    assert (chat.choices[0].model_extra or {})["token_ids"] == expected


async def test_special_tokens_can_be_shown(serve: Serve):
    async with serve() as api:
        answer = await api.openai.completions.create(
            model="austen", prompt="a", max_tokens=3, extra_body={"skip_special_tokens": False}
        )
        bare = await api.openai.completions.create(
            model="austen", prompt="a", max_tokens=3, extra_body={"add_special_tokens": False}
        )
    assert answer.choices[0].text == "<bos>a<bos>"
    assert bare.choices[0].text == "aaa"


def test_synchronous_client(serve: Serve):
    """The blocking client, in a thread of its own as in a user's script."""

    def talk(url: str) -> tuple[str, str, list[str]]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            answer = client.completions.create(model="austen", prompt="ab", max_tokens=3)
            stream = client.completions.create(model="austen", prompt="ab", max_tokens=3, stream=True)
            streamed = "".join(chunk.choices[0].text for chunk in stream)
            return answer.choices[0].text, streamed, [model.id for model in client.models.list()]

    async def main() -> None:
        async with serve() as api:
            assert await asyncio.to_thread(talk, api.url) == ("ab", "ab", ["austen"])

    asyncio.run(main())


async def test_models(serve: Serve):
    async with serve(ScriptedEngine(model="org/small")) as api:
        (listed,) = (await api.openai.models.list()).data
        card = await api.openai.models.retrieve("org/small")
        assert listed == card
        assert (card.id, card.object, card.created) == ("org/small", "model", 1_700_000_000)
        assert card.model_extra == {"max_model_len": 512}
        with pytest.raises(
            openai.NotFoundError, match="there is no model 'org/large'; served is 'org/small'"
        ):
            await api.openai.models.retrieve("org/large")


@pytest.mark.parametrize(
    ("refuse", "error", "code"),
    [
        (TooManyWaiting(9, 8, 3), openai.RateLimitError, "too_many_waiting"),
        (Draining(), openai.InternalServerError, "draining"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refused_at_the_door(serve: Serve, refuse: Exception, error: Any, code: str, stream: bool):
    engine = ScriptedEngine()
    engine.hold()  # the choices that got in before the refusal must be taken back, not run out
    async with serve(engine) as api:
        for before in (0, 2):
            engine.refuse, engine.refuse_from = refuse, before
            with pytest.raises(error) as caught:
                await api.openai.completions.create(model="austen", prompt="a", n=4, stream=stream)
            assert caught.value.code == code
            assert int(caught.value.response.headers["Retry-After"]) >= 1
        assert list(engine.cancelled.values()) == [FinishReason.CANCELLED] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_before_the_first_token_is_an_error_answer(serve: Serve, stream: bool):
    async with serve(ScriptedEngine(failing(0, detail="step 7 failed: out of memory"))) as api:
        with pytest.raises(openai.InternalServerError, match="step 7 failed: out of memory") as caught:
            await api.openai.completions.create(model="austen", prompt="a", stream=stream)
    assert caught.value.code == "engine_fault"


async def test_a_fault_in_a_stream_is_an_event(serve: Serve):
    async with serve(ScriptedEngine(failing(3, detail="step 7 failed"))) as api:
        stream = await api.openai.completions.create(model="austen", prompt=[97], max_tokens=9, stream=True)
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="step 7 failed") as caught:
            async for chunk in stream:
                texts.append(chunk.choices[0].text)
    assert texts == ["a", "a", "a"]
    assert caught.value.code == "engine_fault"


async def test_outgrowing_the_cache_is_the_requests_own_error_and_asked_once(serve: Serve):
    """The server works, and the same request would end at the same place again."""
    detail = "65 tokens need 5 pages of 16 and cache.page_cap allows 4 of 64"
    engine = ScriptedEngine(failing(3, FinishReason.CAPACITY, detail))
    async with serve(engine) as api:
        client = api.openai.with_options(max_retries=2)
        with pytest.raises(openai.BadRequestError, match=detail) as refused:
            await client.completions.create(model="austen", prompt="a", max_tokens=9)
        assert refused.value.code == "cache_capacity_exceeded"
        assert len(engine.requests) == 1
        stream = await client.completions.create(model="austen", prompt=[97], max_tokens=9, stream=True)
        with pytest.raises(openai.APIError, match=detail) as ended:
            async for _ in stream:
                pass
        assert (ended.value.code, ended.value.type) == ("cache_capacity_exceeded", "invalid_request_error")


async def test_a_cancel_is_an_error_that_clients_do_not_repeat(serve: Serve):
    engine = ScriptedEngine(failing(1, FinishReason.CANCELLED, "cancelled by an operator"))
    async with serve(engine) as api:
        client = api.openai.with_options(max_retries=5)
        with pytest.raises(openai.InternalServerError, match="cancelled by an operator") as caught:
            await client.completions.create(model="austen", prompt="a")
    assert caught.value.code == "cancelled"
    assert len(engine.requests) == 1


async def test_one_failed_choice_ends_its_siblings(serve: Serve):
    engine = ScriptedEngine(lambda r: failing(2)(r) if r.id.endswith("-1") else forever(r))

    def forever(request):
        while True:
            yield output(request, 97)

    async with serve(engine) as api:
        for stream in (False, True):
            with pytest.raises(openai.APIError, match="a step failed"):
                answer = await api.openai.completions.create(
                    model="austen", prompt="a", n=3, max_tokens=400, stream=stream
                )
                async for _ in answer:  # pyright: ignore[reportGeneralTypeIssues]
                    pass
        assert not engine.live
        assert list(engine.cancelled.values()) == [FinishReason.CANCELLED] * 4


@pytest.mark.parametrize(
    ("change", "error", "param", "code"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model", "model_not_found"),
        ({"max_tokens": 509}, openai.BadRequestError, "prompt", "context_length_exceeded"),
        ({"temperature": 2.5}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature", "unknown_parameter"),
        ({"suffix": "."}, openai.BadRequestError, "suffix", "unsupported_parameter"),
    ],
)
async def test_errors_are_the_clients_classes(serve: Serve, change: Any, error: Any, param: str, code: str):
    async with serve() as api:
        for stream in (False, True):
            with pytest.raises(error) as caught:
                await api.openai.completions.create(
                    **{"model": "austen", "prompt": "abc", "stream": stream} | change
                )
            assert (caught.value.param, caught.value.code) == (param, code)


async def test_api_key(serve: Serve):
    async with serve(api_key="sësame") as api:
        with pytest.raises(openai.AuthenticationError) as caught:
            await api.openai.with_options(api_key="other").models.list()
        assert caught.value.code == "invalid_api_key"
        async with api.http.get(
            f"{api.url}/v1/models", headers={"Authorization": "Bearer sësame"}
        ) as response:
            assert response.status == 200
