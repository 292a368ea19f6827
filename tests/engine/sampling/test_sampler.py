import math

import pytest
import torch
from arc.engine.sampling.sampler import FAULTED, Sampler
from hypothesis import given, settings
from hypothesis import strategies as st

from .reference import sequence

VOCAB = 8
EOS = 7


def sampler(vocab: int = VOCAB) -> Sampler:
    return Sampler(vocab, "cpu", frozenset({EOS}))


def greedy(logits: list[float], **params) -> int:
    seq = sequence(0, temperature=0.0, **params)
    return sampler(len(logits)).sample(torch.tensor([logits]), [seq]).token_ids[0]


def effect(logits: list[float], **params) -> list[float]:
    """What the sampler makes of logits before the draw, read off the scratch space."""
    scratch = torch.tensor([logits])
    sampler(len(logits)).sample(scratch, [sequence(0, temperature=0.0, **params)])
    return scratch[0].tolist()


def test_presence_penalty_counts_each_output_token_once_and_no_prompt_token():
    got = effect([1.0, 1.0, 1.0, -1.0], prompt=(0,), output=(1, 1, 3), presence_penalty=0.5)
    assert got == [1.0, 0.5, 1.0, -1.5]


def test_frequency_penalty_grows_with_each_output_token():
    got = effect([1.0, 1.0, 1.0, -1.0], prompt=(0, 0), output=(1, 1, 3), frequency_penalty=0.5)
    assert got == [1.0, 0.0, 1.0, -1.5]


def test_repetition_penalty_divides_above_zero_and_multiplies_below_for_prompt_and_output():
    got = effect([3.0, -3.0, 3.0, -3.0, 3.0], prompt=(0, 1), output=(2,), repetition_penalty=2.0)
    assert got == [1.5, -6.0, 1.5, -3.0, 3.0]


def test_penalties_come_in_their_order():
    got = effect(
        [4.0, 4.0], prompt=(0,), output=(1, 1), repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5,
        logit_bias={1: 2.0},
    )  # fmt: skip
    assert got == [2.0, (4 + 2) / 2 - 2 * 0.5 - 0.25]


def test_penalties_follow_a_sequence_as_it_grows_and_after_a_preemption():
    one = sampler(4)
    seq = sequence(0, prompt=(0,), temperature=0.0, frequency_penalty=1.5)
    taken = []
    for _ in range(6):
        token = one.sample(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), [seq]).token_ids[0]
        taken.append(token)
        seq.tokens.append(token)
        seq.computed, seq.preemptions = 0, seq.preemptions + 1
    assert taken == [3, 2, 3, 1, 2, 0]
    # A sampler that first meets the sequence here, tokens and all, agrees.
    assert one.sample(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), [seq]) == sampler(4).sample(
        torch.tensor([[0.0, 1.0, 2.0, 3.0]]), [seq]
    )


def test_many_tokens_are_counted_through_the_growth_of_the_lists():
    output = tuple(range(100)) * 2 + (5,)
    got = effect([0.0] * 200, prompt=(150,), output=output, frequency_penalty=1.0, presence_penalty=0.5)
    assert got == [-3.5 if i == 5 else -2.5 if i < 100 else 0.0 for i in range(200)]


def test_tokens_that_vanish_are_an_error_and_not_a_wrong_count():
    one = sampler(4)
    seq = sequence(0, output=(1, 2), presence_penalty=1.0)
    one.sample(torch.zeros(1, 4), [seq])
    seq.tokens.pop()
    with pytest.raises(ValueError, match="3 tokens were counted and now the sequence has 2"):
        one.sample(torch.zeros(1, 4), [seq])


def test_logit_bias_forces_and_bars():
    assert greedy([0.0, 5.0, 1.0], logit_bias={0: 100.0}) == 0
    assert greedy([0.0, 5.0, 1.0], logit_bias={1: -100.0}) == 2


def test_min_tokens_bars_eos_and_stop_token_ids_until_they_are_there():
    logits = [0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 9.0]
    wanted = {"min_tokens": 2, "stop_token_ids": (2, 999)}
    assert greedy(logits, **wanted) == 1
    assert greedy(logits, output=(0,), **wanted) == 1
    assert greedy(logits, output=(0, 0), **wanted) == EOS
    assert greedy(logits, output=(0,), ignore_eos=True, **wanted) == 1


def test_bars_hold_in_random_rows_too():
    one = sampler()
    rows = [sequence(i, seed=i, min_tokens=1, stop_token_ids=(0, 1, 2)) for i in range(200)]
    drawn = one.sample(torch.zeros(200, VOCAB), rows).token_ids
    assert set(drawn) == {3, 4, 5, 6}


def test_min_tokens_that_bars_everything_is_a_fault_of_that_row():
    rows = [sequence(0, min_tokens=1, stop_token_ids=tuple(range(VOCAB))), sequence(1, temperature=0.0)]
    logits = torch.zeros(2, VOCAB)
    logits[1, 4] = 1.0
    sampled = sampler().sample(logits, rows)
    assert sampled.token_ids == [FAULTED, 4]
    assert sampled.faults == {
        0: "min_tokens bars every token: eos and stop_token_ids cover the whole vocabulary"
    }


def test_a_bias_for_a_token_that_is_not_there_is_a_fault_of_that_row():
    rows = [sequence(0, temperature=0.0), sequence(1, logit_bias={VOCAB: 1.0, 0: 5.0})]
    sampled = sampler().sample(torch.eye(2, VOCAB), rows)
    assert sampled.token_ids == [0, FAULTED]
    assert sampled.faults == {1: f"logit_bias names token {VOCAB}: the vocabulary has ids 0 to {VOCAB - 1}"}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (math.nan, "1 NaN and 0 infinite"),
        (math.inf, "0 NaN and 1 infinite"),
        (-math.inf, "0 NaN and 1 infinite"),
    ],
)
def test_logits_that_are_not_finite_fault_their_row_alone(bad, words):
    params = [
        {"temperature": 0.0},
        {"seed": 1},
        {"seed": 2, "top_p": 0.5, "logprobs": 2, "presence_penalty": 1.0},
    ]
    rows = [sequence(i, **p) for i, p in enumerate(params * 2)]
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0))
    sound = sampler().sample(logits.clone(), rows)
    assert sound.faults == {}
    for row in range(6):
        spoiled = logits.clone()
        spoiled[row, 3] = bad
        sampled = sampler().sample(spoiled, rows)
        assert list(sampled.faults) == [row]
        assert words in sampled.faults[row]
        assert "first at token 3" in sampled.faults[row]
        assert sampled.token_ids == [FAULTED if r == row else t for r, t in enumerate(sound.token_ids)]
        assert sampled.logprobs == [None if r == row else p for r, p in enumerate(sound.logprobs)]


def test_huge_but_finite_logits_are_no_fault():
    sampled = sampler().sample(torch.full((1, VOCAB), 3e38), [sequence(0, temperature=0.0)])
    assert (sampled.token_ids, sampled.faults) == ([0], {})


def test_logprobs_are_the_raw_log_softmax_with_the_chosen_token_also_outside_the_best():
    logits = torch.tensor([[0.5, 2.0, -1.0, 2.0]])
    exact = [v - math.log(sum(math.exp(u) for u in logits[0].tolist())) for v in logits[0].tolist()]
    seq = sequence(
        0, logit_bias={2: 100.0}, temperature=0.1, top_k=1, presence_penalty=1.0, output=(1,), logprobs=2
    )
    record = sampler(4).sample(logits.clone(), [seq]).logprobs[0]
    assert record is not None
    assert record.token_id == 2
    assert record.logprob == pytest.approx(exact[2], abs=1e-6)
    assert record.top == ((1, pytest.approx(exact[1], abs=1e-6)), (3, pytest.approx(exact[3], abs=1e-6)))


def test_each_row_gets_as_many_logprobs_as_it_asked_for():
    rows = [sequence(i, seed=i, logprobs=n) for i, n in enumerate([0, None, 3, 100])]
    records = sampler().sample(torch.randn(4, VOCAB), rows).logprobs
    assert records[1] is None
    assert [len(r.top) for r in records if r is not None] == [0, 3, VOCAB]
    everything = records[3]
    assert everything is not None
    assert sum(math.exp(p) for _, p in everything.top) == pytest.approx(1, abs=1e-6)
    assert [p for _, p in everything.top] == sorted((p for _, p in everything.top), reverse=True)
    assert dict(everything.top)[everything.token_id] == everything.logprob


def test_a_seed_decides_and_no_seed_differs():
    logits = torch.zeros(2, 1000)
    one = Sampler(1000, "cpu", frozenset())

    def run(**params) -> list[int]:
        seq = sequence(0, **params)
        for _ in range(8):
            seq.tokens.append(one.sample(logits[:1].clone(), [seq]).token_ids[0])
        one.forget(0)
        return seq.tokens

    assert run(seed=5) == run(seed=5)
    assert run(seed=5) != run(seed=6)
    assert run() != run()


def test_an_unseeded_sequence_keeps_its_seed_until_it_is_forgotten():
    one = Sampler(100_000, "cpu", frozenset())
    seq = sequence(0)
    logits = torch.zeros(1, 100_000)
    first = one.sample(logits.clone(), [seq]).token_ids
    one.sample(logits.clone(), [sequence(1)])
    assert one.sample(logits.clone(), [seq]).token_ids == first
    one.forget(0)
    assert one.sample(logits.clone(), [seq]).token_ids != first


def test_forgetting_leaves_nothing():
    one = sampler()
    for number in range(50):
        one.sample(torch.zeros(1, VOCAB), [sequence(number, presence_penalty=1.0)])
        one.forget(number)
        one.forget(number)
    assert not one._states
    assert one._plan is None


@pytest.mark.parametrize(
    "logits", [torch.zeros(1, VOCAB), torch.zeros(2, VOCAB + 1), torch.zeros(2, VOCAB, dtype=torch.bfloat16)]
)
def test_logits_of_a_wrong_kind_are_refused(logits):
    with pytest.raises(ValueError, match=rf"wanted \[2, {VOCAB}\] torch.float32"):
        sampler().sample(logits, [sequence(0), sequence(1)])


def test_no_rows_no_tokens():
    assert sampler().sample(torch.zeros(0, VOCAB), []).token_ids == []


any_params = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        "top_k": st.sampled_from([0, 0, 3, 40]),
        "top_p": st.sampled_from([1.0, 0.6]),
        "min_p": st.sampled_from([0.0, 0.2]),
        "presence_penalty": st.sampled_from([0.0, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, -0.4]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "logit_bias": st.sampled_from([{}, {3: 4.0, 300: -100.0}]),
        "seed": st.integers(-5, 5),
        "logprobs": st.sampled_from([None, 0, 2]),
        "stop_token_ids": st.sampled_from([(), (5, 9)]),
        "min_tokens": st.sampled_from([0, 3]),
        "prompt": st.lists(st.integers(0, 319), min_size=1, max_size=6).map(tuple),
        "output": st.lists(st.integers(0, 319), max_size=6).map(tuple),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(any_params, min_size=1, max_size=8), st.integers(0, 2**20), st.randoms(use_true_random=False))
def test_a_sequence_gets_the_same_tokens_whatever_joins_and_leaves_its_batch(params, seed, random):
    vocab, steps = 320, 4
    tables = (
        torch.randn(len(params), steps, vocab, generator=torch.Generator().manual_seed(seed))
        .mul(2)
        .bfloat16()
        .float()
    )

    def alone(number: int):
        one, seq, got = Sampler(vocab, "cpu", frozenset({EOS})), sequence(number, **params[number]), []
        for step in range(steps):
            sampled = one.sample(tables[number, step : step + 1].clone(), [seq])
            seq.tokens.append(sampled.token_ids[0])
            got.append((sampled.token_ids[0], sampled.logprobs[0]))
        return got

    shared = Sampler(vocab, "cpu", frozenset({EOS}))
    seqs = [sequence(i, **p) for i, p in enumerate(params)]
    got: list[list] = [[] for _ in seqs]
    while any(len(g) < steps for g in got):
        members = [i for i, g in enumerate(got) if len(g) < steps and random.random() < 0.7]
        random.shuffle(members)
        logits = torch.stack([tables[i, len(got[i])] for i in members]) if members else torch.zeros(0, vocab)
        sampled = shared.sample(logits, [seqs[i] for i in members])
        for row, i in enumerate(members):
            seqs[i].tokens.append(sampled.token_ids[row])
            got[i].append((sampled.token_ids[row], sampled.logprobs[row]))
    assert got == [alone(i) for i in range(len(params))]


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-39, 1e-38])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_penalty_that_leaves_no_numbers_is_its_own_rows_fault(penalty, temperature):
    """One such request once ended every other one in the batch."""
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0, 0.5, 0.2, -4.0]] * 2)
    bad = sequence(1, prompt=(0, 1, 2), repetition_penalty=penalty, temperature=temperature, top_k=4)
    good = sequence(2, prompt=(0, 1, 2), temperature=0.0)
    sampled = Sampler(VOCAB, "cpu", frozenset({EOS})).sample(logits, [bad, good])
    assert list(sampled.faults) == [0]
    assert "penalties" in sampled.faults[0]
    assert sampled.token_ids == [FAULTED, 0]
