import numpy as np
import pytest
import torch
from arc.engine.sampling.uniform import stream_key, uniforms
from arc.kernels.reference import sample as subject
from arc.kernels.reference.sample import draw, groups_of
from arc.kernels.reference.select import first_max, index_of, top_ids, top_values
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ..engine.sampling.reference import Filters

CPU = torch.device("cpu")


def choose(logits: torch.Tensor, filters: list[Filters], uniform: list[float]) -> list[int]:
    groups = groups_of(
        temperature=[f.temperature for f in filters],
        top_k=[f.top_k for f in filters],
        top_p=[f.top_p for f in filters],
        min_p=[f.min_p for f in filters],
        vocab_size=logits.shape[1],
        device=CPU,
    )
    return draw(logits, groups, torch.tensor(uniform, dtype=torch.float64)).tolist()


def make_logits(seed: int, rows: int, vocab: int, kind: str) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, vocab)) * {"flat": 0.01, "peaked": 12.0}.get(kind, 2.0)
    if kind == "tied":
        values = np.round(values)
    logits = torch.from_numpy(values.astype(np.float32))
    if kind == "barred":
        logits[torch.from_numpy(rng.random((rows, vocab)) < 0.5)] = -torch.inf
        logits[:, int(rng.integers(vocab))] = 1.0
    return logits


kinds = st.sampled_from(["normal", "flat", "peaked", "tied", "barred"])
some_filters = st.builds(
    Filters,
    temperature=st.floats(0.05, 2.0),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 300, 1024, 1025, 3000, 10**6]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-3, 0.05, 0.7, 1.0]),
)
uniform_numbers = st.floats(0.0, 1.0, exclude_max=True)


@settings(max_examples=250, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 7, 64, 100, 256, 257, 320, 4200]),
    kinds,
    st.lists(st.tuples(some_filters, uniform_numbers), min_size=1, max_size=4),
)
@example(0, 4200, "flat", [(Filters(2.0, top_p=0.999), 0.9999999)])  # needs the whole sorted row
@example(0, 4200, "flat", [(Filters(1.0, top_p=0.05), 0.999)])  # the prefix is enough
@example(0, 257, "flat", [(Filters(1.0, top_k=256), 0.5)])
def test_every_draw_is_the_one_that_the_obvious_sampler_makes(seed, vocab, kind, rows):
    logits = make_logits(seed, len(rows), vocab, kind)
    chosen = choose(logits, [f for f, _ in rows], [u for _, u in rows])
    for row, token, (filters, uniform) in zip(logits.tolist(), chosen, rows, strict=True):
        assert filters.allows(row, token, uniform)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([65, 320, 5000]),
    kinds,
    st.lists(st.tuples(some_filters, uniform_numbers), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
def test_a_row_gets_in_any_batch_what_it_gets_alone(seed, vocab, kind, rows, random):
    logits = make_logits(seed, len(rows), vocab, kind)
    filters, uniform = [f for f, _ in rows], [u for _, u in rows]
    alone = [choose(logits[i : i + 1], [filters[i]], [uniform[i]])[0] for i in range(len(rows))]
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = choose(logits[order], [filters[i] for i in order], [uniform[i] for i in order])
    assert choose(logits, filters, uniform) == alone
    assert shuffled == [alone[i] for i in order]


def test_a_wide_vocabulary_is_drawn_from_in_parts_and_threads_without_a_change():
    vocab = 131_072
    assert vocab > max(subject.PREFIXES)
    filters = [
        Filters(0.7),
        Filters(0.7, top_k=40),
        Filters(1.0, top_p=0.9),
        Filters(1.0, min_p=0.01),
        Filters(0.0),
    ]
    logits = make_logits(3, len(filters), vocab, "normal")
    uniform = [0.3, 0.6, 0.9, 0.99, 0.0]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = choose(logits, filters, uniform)
        alone = [choose(logits[i : i + 1], [filters[i]], [uniform[i]])[0] for i in range(len(filters))]
    finally:
        torch.set_num_threads(threads)
    assert together == alone
    for row, token, f, u in list(zip(logits.tolist(), together, filters, uniform, strict=True))[:4]:
        assert f.allows(row, token, u)


@pytest.mark.parametrize(
    "filters",
    [
        Filters(1.0),
        Filters(0.7, top_k=5),
        Filters(1.3, top_p=0.8),
        Filters(0.9, min_p=0.1),
        Filters(1.5, top_k=9, top_p=0.9, min_p=0.02),
    ],
)
def test_draws_have_the_exact_distribution(filters):
    draws = 20_000
    row = make_logits(11, 1, 12, "normal")
    keys = np.array([stream_key(s) for s in range(100)], np.uint64).repeat(draws // 100)
    uniform = uniforms(keys, np.tile(np.arange(draws // 100, dtype=np.uint64), 100))
    chosen = choose(row.expand(draws, -1).contiguous(), [filters] * draws, uniform.tolist())
    counts = np.bincount(chosen, minlength=12)
    expected = dict(filters.distribution(row[0].tolist()))
    assert {i for i in range(12) if counts[i]} <= set(expected)
    statistic = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in expected.items())
    freedom = len(expected) - 1
    assert freedom > 0
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5 + 4


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.zeros(3, 300)
    logits[1, [250, 70, 71]] = 2.0
    logits[2, 299] = 1.0
    assert choose(logits, [Filters(0.0)] * 3, [0.9] * 3) == [0, 70, 299]
    assert choose(logits, [Filters(1.0, top_k=1)] * 3, [0.9] * 3) == [0, 70, 299]


def test_a_top_p_next_to_nothing_keeps_the_best_token_and_one_keeps_all():
    logits = torch.tensor([[0.0, 3.0, 2.9]]).expand(2, -1).contiguous()
    almost_one = 1 - 2.0**-53
    assert choose(logits, [Filters(1.0, top_p=1e-12), Filters(1.0, top_p=1.0)], [almost_one] * 2) == [1, 2]
    assert Filters(1.0, top_p=1e-12).distribution([0.0, 3.0, 2.9]) == [(1, 1.0)]


def test_min_p_of_one_keeps_only_the_best_and_its_ties():
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.5]]).expand(4, -1).contiguous()
    assert choose(logits, [Filters(1.0, min_p=1.0)] * 4, [0.0, 0.49, 0.51, 0.999]) == [1, 1, 2, 2]


@pytest.mark.parametrize("filters", [Filters(1.0), Filters(1.0, top_k=3), Filters(1.0, top_p=0.99)])
def test_a_uniform_just_below_one_never_reaches_a_token_without_weight(filters):
    logits = torch.full((1, 320), -torch.inf)
    logits[0, :2] = torch.tensor([0.0, 0.0])
    logits[0, 2] = -200.0  # its weight underflows
    assert choose(logits, [filters], [1 - 2.0**-53]) == [1]


def test_the_last_token_is_the_end_also_where_float32_sums_are_too_large():
    logits = make_logits(6, 500, 320, "normal")
    assert choose(logits, [Filters(1.0)] * 500, [1 - 2.0**-53] * 500) == [319] * 500


def test_a_temperature_near_zero_neither_overflows_nor_divides_by_zero():
    logits = make_logits(5, 3, 100, "normal")
    best = logits.argmax(dim=-1).tolist()
    assert choose(logits, [Filters(1e-4), Filters(1e-300), Filters(1e-5, top_p=0.9)], [0.999] * 3) == best


small_rows = st.integers(1, 4).flatmap(
    lambda rows: st.integers(1, 70).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(-3, 3), min_size=width, max_size=width), min_size=rows, max_size=rows
        )
    )
)


@given(small_rows, st.data())
def test_selection_is_that_of_a_stable_sort(rows, data):
    values = torch.tensor(rows, dtype=torch.float32)
    k = data.draw(st.integers(1, values.shape[1]))
    order = [sorted(range(len(row)), key=lambda i, row=row: (-row[i], i)) for row in rows]
    assert first_max(values).tolist() == [o[0] for o in order]
    assert top_ids(values, k).tolist() == [o[:k] for o in order]
    assert top_values(values, k).tolist() == [
        [row[i] for i in o[:k]] for row, o in zip(rows, order, strict=True)
    ]
    place = data.draw(st.integers(0, k - 1))
    wanted = [row[o[place]] for row, o in zip(rows, order, strict=True)]
    nth = [sum(row[i] == w for i in o[:place]) for row, o, w in zip(rows, order, wanted, strict=True)]
    found = index_of(values, torch.tensor(wanted, dtype=torch.float32), torch.tensor(nth))
    assert found.tolist() == [o[place] for o in order]


def test_the_block_maxima_lose_no_value():
    values = make_logits(9, 3, 64 * 64, "tied")
    for k in (1, 5, 16):
        assert torch.equal(top_values(values, k), values.sort(descending=True).values[:, :k])
