"""Bucketed admission, kept for comparison, against ragged: the effective batch of each rule."""

from __future__ import annotations

import subprocess
import sys

import pytest
from arc.engine.scheduler.buckets import COALESCE
from arc.engine.scheduler.shattering import PAIRS, Shattered, decoding, simulate, step_of
from arc.engine.scheduler.types import AdmissionPolicy
from arc.engine.sequence import Status, WaitReason
from hypothesis import given, settings
from hypothesis import strategies as st

from .toy_engine import ToyEngine

# (B, D, sequences run a step bucketed, and ragged)
TABLE = [(8, 8, 1, 8), (32, 8, 4, 32), (32, 32, 1, 32), (128, 32, 4, 128), (128, 128, 1, 128), (1, 1, 1, 1)]


POLICIES: tuple[AdmissionPolicy, ...] = ("bucketed", "ragged")


@pytest.mark.parametrize(("batch", "distinct", "bucketed", "ragged"), TABLE)
@pytest.mark.parametrize("arrival", ["ascending", "descending", "dealt"])
def test_effective_batch_is_b_over_d_and_ragged_runs_all(
    batch: int, distinct: int, bucketed: int, ragged: int, arrival: str
) -> None:
    lengths = [COALESCE * (1 + i % distinct) for i in range(batch)]
    if arrival != "dealt":
        lengths.sort(reverse=arrival == "descending")
    for policy, expected in zip(POLICIES, (bucketed, ragged), strict=True):
        scheduler = decoding(policy, lengths)
        effective = [step_of(scheduler).decode_rows for _ in range(4 * distinct + 3)]
        assert effective == [expected] * len(effective)
        assert scheduler.running_count == batch


def test_the_simulation_gives_the_table_exactly() -> None:
    """What `arc bench shattering` prints is the law that the cases above check step by step."""
    found = [simulate(*pair) for pair in PAIRS]
    assert {(each.sequences, each.lengths, each.bucketed, each.ragged) for each in found} == set(TABLE)
    assert all(each.holds for each in found)
    assert not Shattered(sequences=8, lengths=8, bucketed=2, ragged=8).holds


def test_the_simulation_is_a_program_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from arc.engine.scheduler.shattering import main; main()"
    command = [sys.executable, "-c", code, "--pairs", "32x8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split() == ["32", "8", "4", "32", "4"]
    refused = subprocess.run([*command[:-1], "32x5"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "divisor" in refused.stderr


@pytest.mark.parametrize("batch", [1, 8, 32, 128])
def test_uniform_lengths_are_equal_under_both_rules(batch: int) -> None:
    for policy in POLICIES:
        scheduler = decoding(policy, [512] * batch)
        assert [step_of(scheduler).decode_rows for _ in range(70)] == [batch] * 70


@pytest.mark.parametrize(("gap", "together"), [(COALESCE - 1, True), (COALESCE, False)])
def test_two_buckets_within_64_tokens_run_together(gap: int, together: bool) -> None:
    scheduler = decoding("bucketed", [200, 200, 200 + gap])
    effective = [step_of(scheduler).decode_rows for _ in range(6)]
    assert effective == ([3] * 6 if together else [1, 2] * 3)


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 700), min_size=1, max_size=24))
def test_no_bucket_starves(lengths: list[int]) -> None:
    scheduler = decoding("bucketed", lengths)
    seen = dict.fromkeys(range(len(lengths)), 0)
    for index in range(1, 5 * len(lengths)):
        step = step_of(scheduler)
        starts = [row.start for row in step.rows]
        assert max(starts) - min(starts) < COALESCE
        for row in step.rows:
            seen[row.seq.number] = index
        assert all(index - last <= len(lengths) for last in seen.values())
        for seq in scheduler.running:
            assert seq.wait_reason is (None if seen[seq.number] == index else WaitReason.BUCKET)


def test_losers_that_are_preempted_give_their_pages_and_are_prefilled_again() -> None:
    scheduler = decoding("bucketed", [100, 300, 500], losers="preempt")
    step = step_of(scheduler)
    assert [row.seq.number for row in step.rows] == [2]
    assert {seq.number for seq in step.preempted} == {0, 1} and not step.admitted
    assert scheduler.waiting_by_reason() == {WaitReason.BUCKET: 2}
    assert scheduler.pages.used == len(step.rows[0].seq.pages)
    step = step_of(scheduler)
    assert {seq.number for seq in step.admitted} == {0, 1}
    assert step.recomputed_tokens == 100 + 300
    assert step.prompt_tokens == 101 + 301


@pytest.mark.parametrize("losers", ["wait", "preempt"])
@pytest.mark.parametrize("prefix", [True, False])
def test_bucketed_work_comes_to_its_end_with_the_same_tokens(losers: str, prefix: bool) -> None:
    engine = ToyEngine(
        80,
        16,
        max_running=8,
        max_step_tokens=64,
        admission="bucketed",
        bucket_losers=losers,
        prefix_cache=prefix,
    )
    for i in range(12):
        engine.add(5 + 70 * (i % 3), 6 + i)
    engine.run(4000)
    assert len(engine.finished) == 12 and all(seq.status is Status.FINISHED for seq in engine.sequences)
    assert (engine.preemptions > 0) == (losers == "preempt")


def test_ragged_never_preempts_a_loser() -> None:
    engine = ToyEngine(80, 16, max_running=8, max_step_tokens=64, bucket_losers="preempt")
    for i in range(12):
        engine.add(5 + 70 * (i % 3), 6 + i)
    engine.run()
    assert engine.preemptions == 0


@pytest.mark.parametrize("pairs", ["foo", "8", "8x3", "2048x8", "8x8,", "0x0"])
def test_pairs_that_are_none_are_one_error_that_says_what_they_are(pairs: str) -> None:
    code = "from arc.engine.scheduler.shattering import main; main()"
    asked = subprocess.run(
        [sys.executable, "-c", code, "--pairs", pairs], check=False, capture_output=True, text=True
    )
    assert asked.returncode == 2
    assert f"{pairs!r}: each is BxD, with D a divisor of B" in asked.stderr
