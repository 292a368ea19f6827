"""Long work in threads: never more of it at once than is allowed, and nothing of the allowance is ever lost."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

import pytest
from arc.engine.api.long_work import LongWork
from arc.engine.api.prompts import MOST_TEXT, PromptReader
from arc.engine.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from .conftest import Serve
from .test_errors import CHAT, COMPLETION

MOST = 10


class _Failed(Exception):
    pass


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3 * MOST), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_never_more_than_allowed_and_all_of_it_is_free_in_the_end(jobs: list[tuple[int, bool, bool]]) -> None:
    lock = threading.Lock()
    sizes: list[int] = []  # under way
    worst = 0

    def work(size: int, fails: bool) -> int:
        nonlocal worst
        with lock:
            sizes.append(min(size, MOST))
            worst = max(worst, sum(sizes))
        with lock:
            sizes.remove(min(size, MOST))
        if fails:
            raise _Failed
        return size

    async def main() -> None:
        long = LongWork(MOST)
        tasks = [
            asyncio.create_task(long.run(size, lambda size=size, fails=fails: work(size, fails)))
            for size, fails, _ in jobs
        ]
        await asyncio.sleep(0)  # the first are under way, the rest waits
        for task, (_, _, leaves) in zip(tasks, jobs, strict=True):
            if leaves:
                task.cancel()
        for task, (size, fails, leaves), result in zip(
            tasks, jobs, await asyncio.gather(*tasks, return_exceptions=True), strict=True
        ):
            assert task.cancelled() if leaves else isinstance(result, _Failed) if fails else result == size
        assert await asyncio.wait_for(long.run(MOST, lambda: "all of it"), 60) == "all of it"

    asyncio.run(main())
    assert 0 < worst <= MOST or all(leaves for *_, leaves in jobs)


def test_who_came_first_is_first_and_one_that_left_still_counts_while_its_thread_works() -> None:
    async def main() -> None:
        long = LongWork(MOST)
        ends = threading.Event()
        order: list[str] = []
        large = asyncio.create_task(long.run(100, ends.wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(long.run(MOST, lambda: order.append("second")))
        third = asyncio.create_task(long.run(1, lambda: order.append("third")))
        await asyncio.sleep(0)
        large.cancel()
        with pytest.raises(asyncio.CancelledError):
            await large
        for _ in range(20):
            await asyncio.sleep(0)
        assert not order
        assert not second.done()
        assert not third.done()
        ends.set()
        await asyncio.gather(second, third)
        assert order == ["second", "third"]

    asyncio.run(main())


def test_large_texts_are_tokenized_one_after_the_other() -> None:
    """Eight of 7 MB at once took 5.7 GB and the engine with them where there is less."""
    lock = threading.Lock()
    under_way = worst = 0

    class Slow:
        def encode(self, text: str, *, add_special: bool, most: int) -> list[int]:
            nonlocal under_way, worst
            with lock:
                under_way += len(text)
                worst = max(worst, under_way)
            time.sleep(0.02)  # long enough for others to come in, were they let
            with lock:
                under_way -= len(text)
            return [1]

    async def main() -> None:
        reader = PromptReader(cast("Any", Slow()), None, 2, 100)
        half = "a" * (MOST_TEXT // 2)
        await asyncio.gather(*(reader.completion(text, True) for text in (half, half + "a", half, half)))

    asyncio.run(main())
    assert 0 < worst <= MOST_TEXT


async def test_a_prompt_of_millions_of_tokens_is_refused_without_a_list_of_them(
    serve: Serve, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making that list holds every other request up for as long as it takes, so only /tokenize, which answers with it,
    has it made. The number is still the exact one."""
    made: list[int] = []
    batch = tokenizer.inner.encode_batch_fast

    class Counted:
        def __init__(self, encoding: Any) -> None:
            self._encoding = encoding

        def __len__(self) -> int:
            return len(self._encoding)

        @property
        def ids(self) -> list[int]:
            made.append(len(self._encoding))
            return self._encoding.ids

    class Inner:
        def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Counted]:
            return [Counted(each) for each in batch(texts, add_special_tokens=add_special_tokens)]

        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

    original = tokenizer.inner
    monkeypatch.setattr(tokenizer, "inner", Inner())
    text = "word " * 80_000
    async with serve() as api:
        for path, body, special in (
            (COMPLETION, {"prompt": text}, 1),
            (COMPLETION, {"prompt": ["a", text]}, 1),
            (CHAT, {"messages": [{"role": "user", "content": text}]}, len("[user][assistant]")),
        ):
            status, answer = await api.post(path, body)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert f"has {len(text) + special} tokens" in answer["error"]["message"]
        assert max(made, default=0) < 100
        status, answer = await api.post("/tokenize", {"prompt": text})
        assert (status, answer["count"]) == (200, len(text) + 1)
        status, answer = await api.post(COMPLETION, {"prompt": [65] * 100_000})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
