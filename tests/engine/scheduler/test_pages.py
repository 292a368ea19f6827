"""The page manager alone: what is shared, what is evicted, what a cap and a flush do."""

from __future__ import annotations

import pytest
from arc.engine.scheduler.pages import PageAccountingError, PageManager
from arc.engine.sequence import Request, SamplingParams, Sequence, sequence_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule


def make(number: int, tokens: list[int]) -> Sequence:
    return sequence_of(number, Request(id=str(number), prompt=tuple(tokens), params=SamplingParams()))


def run(pages: PageManager, number: int, tokens: list[int], computed: int | None = None) -> Sequence:
    """A sequence admitted with what it finds cached, and computed so far."""
    seq = make(number, tokens)
    pages.open(seq, pages.match(seq.tokens))
    assert pages.grow(seq, len(tokens))
    seq.computed = len(tokens) if computed is None else computed
    pages.register(seq)
    pages.check()
    return seq


def close(pages: PageManager, seq: Sequence) -> None:
    pages.close(seq)
    pages.check()


def found(pages: PageManager, tokens: list[int]) -> int:
    return len(pages.match(tokens)) * pages.page_size


def test_only_full_computed_pages_are_found_and_never_the_last_token() -> None:
    pages = PageManager(8, 4)
    tokens = list(range(11))
    seq = run(pages, 0, tokens, computed=7)
    assert found(pages, tokens) == 4
    seq.computed = 11
    assert found(pages, tokens) == 4  # computed is not yet findable: register says when
    pages.register(seq)
    assert [found(pages, tokens[:n]) for n in range(1, 12)] == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8]
    assert found(pages, [*tokens, 11, 12, 13]) == 8


def test_equal_hashes_and_equal_blocks_behind_other_prefixes_are_told_apart() -> None:
    assert hash(-1) == hash(-2)  # CPython: so these blocks collide in every dict
    pages = PageManager(16, 2)
    run(pages, 0, [-1, -1, 5, 6, 0])
    assert found(pages, [-2, -1, 5, 6, 0]) == 0
    assert found(pages, [-1, -2, 5, 6, 0]) == 0
    run(pages, 1, [-2, -1, 5, 6, 0])
    assert pages.match([-1, -1, 5, 6, 0])[1].pages != pages.match([-2, -1, 5, 6, 0])[1].pages
    assert found(pages, [5, 6, 0]) == 0


def test_shared_pages_are_the_same_pages_and_outlive_their_first_owner() -> None:
    pages = PageManager(8, 2)
    first = run(pages, 0, [1, 2, 3, 4, 5])
    second = run(pages, 1, [1, 2, 3, 4, 6])
    assert second.pages[:2] == first.pages[:2] and second.pages[2] != first.pages[2]
    assert pages.used == 4 and pages.private(first) == 1
    close(pages, first)
    assert pages.used == 3 and pages.private(second) == 3
    close(pages, second)
    assert (pages.used, pages.cached, pages.free) == (0, 2, 6)


def test_least_recently_used_goes_first_and_children_before_parents() -> None:
    pages = PageManager(6, 1)
    old = run(pages, 0, [1, 2, 3])
    new = run(pages, 1, [7, 8, 9])
    close(pages, old)
    close(pages, new)
    for expected in (2, 1, 0):
        run(pages, 10 + expected, [50 + expected])
        assert found(pages, [1, 2, 3, 0]) == expected
        assert found(pages, [7, 8, 9, 0]) == 3
    assert pages.cached == 3


def test_a_hit_makes_the_whole_chain_recent() -> None:
    pages = PageManager(6, 1)
    a = run(pages, 0, [1, 2])
    b = run(pages, 1, [7, 8])
    close(pages, a)
    close(pages, b)
    close(pages, run(pages, 2, [1, 2, 3]))
    run(pages, 3, [60, 61])
    assert found(pages, [1, 2, 0]) == 2
    assert found(pages, [7, 8, 0]) == 1


@pytest.mark.parametrize("first_to_close", [0, 1])
def test_sequences_that_computed_the_same_block_side_by_side_leave_one_copy(first_to_close: int) -> None:
    pages = PageManager(8, 2)
    twins = [make(i, [1, 2, 3, 4, 9 + i, 9, 9]) for i in (0, 1)]
    for seq in twins:  # both start before either is registered
        pages.open(seq, pages.match(seq.tokens))
        pages.grow(seq, 7)
    for seq in twins:
        seq.computed = 7
        pages.register(seq)
        pages.check()
    assert pages.used == 8
    close(pages, twins[first_to_close])
    assert (pages.used, pages.cached) == (
        4,
        1,
    )  # its own third page only: the other still holds the shared two
    close(pages, twins[1 - first_to_close])
    assert (pages.used, pages.cached, pages.free) == (0, 4, 4)
    for i in (0, 1):
        assert found(pages, [1, 2, 3, 4, 9 + i, 9, 9]) == 6


def test_a_copy_in_use_replaces_the_unused_one() -> None:
    """A prompt that ends on a page border computes its last page again; the cached page must not leak."""
    pages = PageManager(4, 2)
    close(pages, run(pages, 0, [1, 2, 3, 4]))
    again = run(pages, 1, [1, 2, 3, 4])
    assert (pages.used, pages.cached, pages.free) == (2, 0, 2)
    close(pages, again)
    assert (pages.used, pages.cached, pages.free) == (0, 2, 2)


def test_growing_is_all_or_nothing() -> None:
    pages = PageManager(4, 2)
    seq = run(pages, 0, [1, 2, 3])
    assert not pages.grow(seq, 9)
    assert len(seq.pages) == 2 and pages.used == 2
    assert pages.grow(seq, 8) and pages.used == 4
    assert pages.grow(seq, 5) and pages.used == 4
    pages.check()


def test_a_lowered_cap_drains_cached_pages_now_and_used_ones_at_their_end() -> None:
    pages = PageManager(10, 1)
    close(pages, run(pages, 0, [1, 2, 3, 4]))
    seq = run(pages, 1, [5, 6, 7, 8])
    pages.set_cap(6)
    pages.check()
    assert (pages.used, pages.cached) == (4, 2)
    pages.set_cap(3)
    pages.check()
    assert (pages.used, pages.cached) == (4, 0)
    assert pages.room() == -1 and not pages.grow(seq, 5)
    assert pages.grow(seq, 5, reach=10)  # admitted when all ten could be had
    close(pages, seq)
    assert (pages.used, pages.cached, pages.free) == (0, 3, 7)
    other = run(pages, 2, [9, 9, 9])
    assert not pages.grow(other, 4)
    pages.set_cap(None)
    assert pages.grow(other, 10)
    pages.check()


def test_a_flush_says_what_it_dropped_and_what_it_kept_and_why() -> None:
    pages = PageManager(10, 2)
    close(pages, run(pages, 0, [1, 2, 3, 4]))
    seq = run(pages, 1, [5, 6, 7, 8, 9])
    flush = pages.flush()
    assert (flush.dropped, flush.kept, flush.why_kept) == (2, 2, "in use by 1 running sequences")
    assert found(pages, [1, 2, 3, 4, 0]) == 0 and found(pages, [5, 6, 7, 8, 9]) == 4
    close(pages, seq)
    flush = pages.flush()
    assert (flush.dropped, flush.kept, flush.why_kept) == (2, 0, None)
    assert pages.free == 10


def test_prefix_off_hashes_and_finds_nothing_and_on_again_registers_what_runs() -> None:
    pages = PageManager(10, 2)
    seq = run(pages, 0, [1, 2, 3, 4, 5])
    close(pages, run(pages, 1, [7, 8, 9]))
    pages.set_prefix(False)
    pages.check()
    assert pages.cached == 0 and found(pages, [1, 2, 3, 4, 5]) == 0 and found(pages, [7, 8, 9]) == 0
    pages.register(seq)
    assert not pages._index
    close(pages, run(pages, 2, [1, 2, 3, 4, 5]))
    assert pages.cached == 0
    pages.set_prefix(True)
    assert found(pages, [1, 2, 3, 4, 5]) == 0
    pages.register(seq)
    pages.check()
    assert found(pages, [1, 2, 3, 4, 5]) == 4


def test_an_old_answer_is_brought_up_to_date() -> None:
    pages = PageManager(4, 1)
    tokens = [1, 2, 3, 4]
    close(pages, run(pages, 0, [1, 2]))
    chain = pages.match(tokens)
    assert len(chain) == 2
    close(pages, run(pages, 1, [1, 2, 3]))
    assert pages.match(tokens, chain) is chain and len(chain) == 3
    run(pages, 2, [8, 9, 10])  # evicts two
    assert len(pages.match(tokens, chain)) == 1
    assert chain == pages.match(tokens)


def test_check_notices_what_it_is_for() -> None:
    def broken(how) -> None:
        pages = PageManager(6, 1)
        close(pages, run(pages, 0, [1, 2]))
        seq = run(pages, 1, [5, 6])
        how(pages, seq)
        with pytest.raises(PageAccountingError):
            pages.check()

    broken(lambda pages, seq: seq.pages.pop())
    broken(lambda pages, seq: seq.pages.append(5))
    broken(lambda pages, seq: pages._free.pop())
    broken(lambda pages, seq: pages._free.append(0))
    broken(lambda pages, seq: pages._lru.popitem())
    broken(lambda pages, seq: seq.tokens.__setitem__(0, 4))
    broken(lambda pages, seq: setattr(seq, "computed", 1))
    broken(lambda pages, seq: setattr(pages, "limit", 2))
    broken(lambda pages, seq: pages._index.popitem())


class PageMachine(RuleBasedStateMachine):
    """Many short sequences over two token values, so that nearly all blocks are shared, copied or evicted."""

    @initialize(total=st.integers(2, 14), page_size=st.integers(1, 3))
    def start(self, total: int, page_size: int) -> None:
        self.pages = PageManager(total, page_size)
        self.live: list[Sequence] = []
        self.chains: list[tuple[list[int], list]] = []
        self.content: dict[int, tuple[int, ...]] = {}  # page -> the whole prefix whose KV it holds
        self.number = 0

    def look(self, tokens: list[int], chain: list | None = None) -> list:
        chain = self.pages.match(tokens, chain)
        size = self.pages.page_size
        for i, block in enumerate(chain):
            for page in block.pages:
                assert self.content[page] == tuple(tokens[: (i + 1) * size])
        return chain

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def open(self, tokens: list[int]) -> None:
        seq = make(self.number, tokens)
        self.number += 1
        chain = self.look(tokens)
        need = self.pages.pages_for(len(tokens)) - len(chain) + self.pages.idle(chain)
        if need <= self.pages.room():
            self.pages.open(seq, chain)
            assert self.pages.grow(seq, len(tokens))
            self.live.append(seq)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def keep_an_answer(self, tokens: list[int]) -> None:
        self.chains.append((tokens, self.look(tokens)))

    @precondition(lambda self: self.chains)
    @rule(data=st.data())
    def look_again(self, data) -> None:
        tokens, chain = data.draw(st.sampled_from(self.chains))
        assert self.look(tokens, chain) == self.pages.match(tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 5))
    def compute(self, data, count: int) -> None:
        seq = data.draw(st.sampled_from(self.live))
        if seq.computed + count > len(seq.tokens):
            seq.tokens.append(count % 2)
            if not self.pages.grow(seq, len(seq.tokens)):
                seq.tokens.pop()
        size = self.pages.page_size
        for position in range(seq.computed, min(seq.computed + count, len(seq.tokens))):
            page = seq.pages[position // size]
            assert self.pages._refs[page] == 1 and self.pages._blocks[page] is None, (
                "a shared page is written"
            )
            self.content[page] = tuple(seq.tokens[: position + 1])
        seq.computed = min(seq.computed + count, len(seq.tokens))
        self.pages.register(seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data) -> None:
        seq = data.draw(st.sampled_from(self.live))
        self.live.remove(seq)
        self.pages.close(seq)

    @rule(cap=st.none() | st.integers(1, 14))
    def cap(self, cap: int | None) -> None:
        self.pages.set_cap(cap)

    @rule(enabled=st.booleans())
    def prefix(self, enabled: bool) -> None:
        self.pages.set_prefix(enabled)

    @rule()
    def flush(self) -> None:
        self.pages.flush()

    def teardown(self) -> None:
        if hasattr(self, "pages"):
            for seq in self.live:
                self.pages.close(seq)
            self.pages.flush()
            self.pages.check()
            assert self.pages.free == self.pages.total

    @invariant()
    def accounted(self) -> None:
        if hasattr(self, "pages"):
            self.pages.check()


TestPageMachine = PageMachine.TestCase
TestPageMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
