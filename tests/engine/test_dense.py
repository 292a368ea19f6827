"""The dense layout by itself: what is in it, and attention over it, against what they should be."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from arc.engine.folder import CARRIED
from arc.engine.model.dense import DenseCache, DenseMlaDecode, DensePlan, SlotKindError
from arc.engine.model.hf_config import read_config
from arc.kernels import Target, resolve
from hypothesis import given, settings
from hypothesis import strategies as st

CPU = torch.device("cpu")
CONFIG = dataclasses.replace(read_config(CARRIED), layers=2, kv_lora_rank=4, rope_dim=2)
WIDTH = CONFIG.latent_width


class Rows:
    """A cache and what it should hold, written and read where a step would."""

    def __init__(self) -> None:
        self.cache = DenseCache(CONFIG, prediction=True, dtype=torch.float32, device=CPU)
        self.held: dict[int, list[float]] = {}
        self.values = itertools.count(1)

    def step(self, rows: list[int], counts: list[int], kept: list[int], strip: bool, slack: int = 2) -> None:
        """counts[i] tokens of rows[i] are written, of which kept[i] turn out to count."""
        cache = self.cache
        own = [len(self.held.setdefault(row, [])) for row in rows]
        cache.open(rows, own, counts, slack, strip)
        after = {row: length + count for row, length, count in zip(rows, own, counts, strict=True)}
        assert [lead + after[row] for row, lead in zip(rows, cache.leads, strict=True)] == [cache.end] * len(
            rows
        )
        assert cache.end + slack <= cache.columns
        for row, first, count, stays in zip(rows, cache.first(rows), counts, kept, strict=True):
            length = len(self.held[row])
            for place in range(length + count + slack):
                if place < length:
                    assert self.read(first + place) == [self.held[row][place]] * 3, f"row {row} at {place}"
                else:
                    value = float(next(self.values))
                    for slot in (*cache.layers, cache.prediction):
                        assert slot is not None
                        slot[first + place] = value
                    if place < length + stays:
                        self.held[row].append(value)
        cache.close({row: len(self.held[row]) for row in rows}, strip)

    def read(self, slot: int) -> list[float]:
        assert self.cache.prediction is not None
        tensors = (*self.cache.layers, self.cache.prediction)
        assert all(bool((tensor[slot] == tensor[slot][0]).all()) for tensor in tensors)
        return [float(tensor[slot][0]) for tensor in tensors]

    def drop(self, row: int) -> None:
        self.cache.drop(row)
        del self.held[row]


steps = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True),  # rows
        st.lists(
            st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=5, max_size=5
        ),  # written, taken back
        st.sampled_from(["mask", "mask", "strip"]),
        st.sets(st.integers(0, 5), max_size=2),  # ended after it
        st.integers(1, 4),  # times, as a cohort that stays together
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_a_row_keeps_its_tokens_through_every_batch_and_both_designs(sequence) -> None:
    rows = Rows()
    for members, numbers, design, ended, times in sequence:
        counts = [count for count, _ in numbers[: len(members)]]
        kept = [max(count - back, 0) for count, back in numbers[: len(members)]]
        for _ in range(times):
            rows.step(members, counts, kept, strip=design == "strip")
        for row in ended & rows.held.keys():
            rows.drop(row)
        assert len(rows.cache) == len(rows.held)


def test_the_spread_of_lengths_grows_as_rows_diverge_while_the_stored_length_is_one() -> None:
    """The trap: the tensor says that all rows are as long as the longest. Their leads say what is true."""
    rows = Rows()
    rows.step([1, 2], [8, 8], [8, 8], strip=False)
    for step in range(1, 6):
        rows.step([1, 2], [4, 4], [4, 1], strip=False)  # all drafts of one row, none of the other
        lengths = [len(rows.held[row]) for row in (1, 2)]
        assert lengths == [8 + 4 * step, 8 + step]
        assert rows.cache._lengths == dict(zip((1, 2), lengths, strict=True))
        lead, other = rows.cache.leads
        assert other - lead == 3 * (step - 1)  # as the batch was laid out for this step
        assert rows.cache.end == lengths[0]


def test_what_is_copied_under_each_design_is_counted_exactly() -> None:
    slots = 3
    rows = Rows()
    done = rows.cache.done
    rows.step([1, 2, 3], [5, 9, 2], [5, 9, 2], strip=False)
    assert +done == {"clone_in.alloc": slots}
    for _ in range(20):  # a cohort in step copies nothing
        rows.step([1, 2, 3], [1, 1, 1], [1, 1, 1], strip=False)
    assert +done == {"clone_in.alloc": slots}
    rows.step([1, 2, 3], [3, 3, 3], [3, 1, 2], strip=False)
    rows.step([1, 2, 3], [3, 3, 3], [3, 3, 3], strip=False)  # two of the three have to catch up
    assert +done == {"clone_in.alloc": slots, "front_pad_grow": 2 * slots}
    done.clear()
    for _ in range(4):
        rows.step([1, 2, 3], [1, 1, 1], [1, 1, 1], strip=True)
    first = 3 * slots  # what was together is taken apart once
    assert +done == {
        "clone_in.alloc": 4 * slots, "clone_in.slice_set": 4 * 3 * slots, "clone_out": first + 4 * 3 * slots,
    }  # fmt: skip


def test_a_length_that_is_not_the_sequences_own_is_refused() -> None:
    rows = Rows()
    rows.step([1, 2], [5, 9], [5, 9], strip=True)
    with pytest.raises(RuntimeError, match="row 1 has 5 tokens here and 9"):
        rows.cache.open([1, 2], [9, 9], [1, 1], 0, strip=True)


def test_a_slot_of_a_kind_that_cannot_be_cut_is_refused_by_name() -> None:
    rows = Rows()
    rows.cache.kinds = ("latent", "latent", "recurrent state")
    rows.cache.open([1], [0], [4], 0, strip=True)
    with pytest.raises(SlotKindError, match=r"'recurrent state' .*known: latent, prediction"):
        rows.cache.close({1: 4}, strip=True)


cases = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 5)).map(lambda pair: (pair[0] + pair[1] - 1, pair[1])),
    min_size=1,
    max_size=6,
)


def attention(
    rows: list[tuple[int, int]], dead: float, order: list[int]
) -> tuple[torch.Tensor, torch.Tensor, DensePlan, torch.Tensor, torch.Tensor]:
    """The same random rows (length, queries) laid out densely, with `dead` in every other place, and in pages.

    Gives paged attention's result, the dense one's, and what the latter took.
    """
    generator = torch.Generator().manual_seed(len(rows))
    heads, rank, page = 3, 4, 4
    columns = max(length for length, _ in rows) + 5
    latents = [torch.randn(length, WIDTH, generator=generator) for length, _ in rows]
    dense = torch.full((len(rows), columns, WIDTH), dead)
    end = columns - 3
    pages = -(-columns // page)
    paged = torch.zeros(len(rows) * pages + 1, page, WIDTH)
    tables = torch.arange(len(rows) * pages).view(len(rows), pages)
    for at, latent in enumerate(latents):
        dense[at, end - len(latent) : end] = latent
        paged[at * pages : (at + 1) * pages].view(-1, WIDTH)[: len(latent)] = latent
    counts = [rows[at][1] for at in order]
    lengths = [rows[at][0] for at in order]
    q = torch.randn(sum(counts), heads, WIDTH, generator=generator)
    reference = resolve("torch", Target(CPU, torch.float32)).mla_decode
    plan = reference.plan(lengths, counts, tables[order], page, WIDTH)
    want = reference(q, paged.view(-1, WIDTH), plan, scale=0.3, rank=rank)
    subject = DenseMlaDecode(lambda: columns)
    firsts = torch.tensor([[at * columns + end - rows[at][0]] for at in order])
    mine = subject.plan(lengths, counts, firsts, 1, WIDTH)
    flat = dense.view(-1, WIDTH)
    return want, subject(q, flat, mine, scale=0.3, rank=rank), mine, q, flat


@settings(max_examples=60, deadline=None)
@given(cases, st.sampled_from([0.0, 3.0, -1e4]), st.randoms(use_true_random=False))
def test_attention_is_that_of_the_paged_layout_whatever_lies_in_a_dead_prefix(rows, dead, random) -> None:
    order = random.sample(range(len(rows)), random.randint(1, len(rows)))
    want, got, *_ = attention(rows, dead, order)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dead", [0.0, 3.0])
def test_an_unmasked_dead_prefix_takes_weight_and_is_caught(dead: float) -> None:
    """Zeros are no mask: they score 0, which softmax counts. A comparison that could not see that would be void."""
    want, got, plan, q, flat = attention([(12, 1), (4, 1)], dead, [0, 1])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    unmasked = plan._replace(hidden=torch.zeros_like(plan.hidden))
    wrong = DenseMlaDecode(lambda: plan.columns)(q, flat, unmasked, scale=0.3, rank=4)
    torch.testing.assert_close(wrong[0], want[0], atol=1e-5, rtol=1e-5)  # the longest row has no dead prefix
    assert float((wrong[1] - want[1]).abs().max()) > 0.05
