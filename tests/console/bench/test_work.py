"""What is sent: reproducible, within its bounds, and shaped as the sources say."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path

import pytest
from arc.console.bench import work
from arc.console.bench.histogram import LatencyHistogram
from arc.console.bench.work import SHAPES, Job, Lengths, Plan, Shape
from arc.console.exits import Failure
from hypothesis import given
from hypothesis import strategies as st


def plan(shape: Shape, **more: int) -> Plan:
    return Plan(
        shape, Lengths(16, 512), Lengths(32, 256), more.get("rows", 8), 2048, more.get("context", 4096)
    )


def first(plan_: Plan, count: int, seed: int = 0) -> list[Job]:
    return list(itertools.islice(plan_.jobs(seed), count))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_seed_is_the_same_work_and_it_fits(shape: Shape) -> None:
    found = first(plan(shape), 60)
    assert found == first(plan(shape), 60)
    assert found != first(plan(shape), 60, seed=1)
    for job in found:
        assert isinstance(job.prompt, tuple)
        assert len(job.prompt) >= 1 and job.output >= 1
        assert len(job.prompt) + job.output <= 4096
        assert all(work.FIRST_ID <= each < 2048 for each in job.prompt)


@pytest.mark.parametrize("shape", ["uniform", "mixed", "spread", "burstgpt"])
def test_prompts_of_two_passes_begin_differently(shape: Shape) -> None:
    """Else the second pass would be served out of the prefix cache."""
    starts = {job.prompt[:8] for seed in (0, 1, -1) for job in first(plan(shape), 20, seed)}
    assert len(starts) == 60


def test_spread_rows_are_further_apart_than_buckets_reach() -> None:
    lengths = [len(job.prompt) for job in first(plan("spread"), 16)]
    assert lengths[:8] == lengths[8:]
    assert all(later - before > 64 for before, later in itertools.pairwise(lengths[:8]))


def test_mixed_fills_its_range() -> None:
    found = first(plan("mixed"), 2000)
    lengths = [len(job.prompt) for job in found]
    assert min(lengths) < 30 and max(lengths) > 495 and abs(statistics.mean(lengths) - 264) < 15
    assert {job.output for job in found} <= set(range(32, 257))


def test_zipf_has_the_law_it_claims() -> None:
    lengths = Lengths(1, 1000)
    zipf, rng = work.Zipf(1.1, lengths), random.Random(1)
    drawn = [zipf.draw(rng) for _ in range(40_000)]
    whole = sum(n**-1.1 for n in range(1, 1001))
    for n in (1, 2, 5, 20):
        expected = 40_000 * n**-1.1 / whole
        assert abs(drawn.count(n) - expected) < 5 * math.sqrt(expected)
    assert min(drawn) == 1 and max(drawn) <= 1000


def test_mooncake_has_the_quantiles_and_the_shared_prefixes_of_its_trace() -> None:
    rng = random.Random(2)
    drawn = sorted(work.quantile(work.MOONCAKE_PROMPTS, rng.random()) for _ in range(20_000))
    for share, value in ((0.1, 964), (0.5, 6909), (0.9, 27367)):
        assert abs(drawn[int(share * 20_000)] / value - 1) < 0.12
    assert 0.7 < statistics.mean(drawn) / 12_035 < 1.3
    found = first(plan("mooncake", context=131_072), 250)
    seen: set[int] = set()
    blocks = shared = 0
    for job in found:
        assert isinstance(job.prompt, tuple)
        ends = range(512, len(job.prompt) + 1, 512)
        chain = itertools.accumulate(
            (hash(job.prompt[end - 512 : end]) for end in ends), lambda *pair: hash(pair)
        )
        starts = list(chain)
        blocks += len(starts)
        shared += sum(start in seen for start in starts)
        seen.update(starts)
    assert abs(shared / blocks - work.MOONCAKE_SHARED) < 0.12


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.5, math.sqrt(2)), (4.0, 0.5)])
def test_arrivals_have_their_rate_and_their_bursts(burstiness: float, cv: float) -> None:
    times = [0.0, *itertools.islice(work.arrivals(20.0, burstiness, random.Random(3)), 20_000)]
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert abs(statistics.mean(gaps) * 20 - 1) < 0.05
    assert abs(statistics.stdev(gaps) / statistics.mean(gaps) / cv - 1) < 0.05


@given(low=st.integers(1, 300), more=st.integers(0, 300), count=st.integers(1, 60), seed=st.integers(0, 99))
def test_balanced_lengths_add_up_to_the_same_whatever_the_seed(
    low: int, more: int, count: int, seed: int
) -> None:
    lengths = Lengths(low, low + more)
    values = work.balanced(lengths, count, random.Random(seed))
    assert sum(values) == sum(work.balanced(lengths, count, random.Random(0)))
    assert all(lengths.low <= value <= lengths.high for value in values)
    assert abs(sum(values) / count - (2 * low + more) / 2) <= 1


def written(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines))
    return path


def test_a_trace_is_sent_as_it_is_written(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]},
        {"timestamp": 1500, "input_length": 700, "output_length": 6, "hash_ids": [7, 9]},
        "",
        {"prompt": "It was", "output_length": 7, "timestamp": 2000},
    )
    jobs = work.trace_jobs(path, 2048, 4096, 0)
    assert [job.at for job in jobs] == [0, 1.5, 2] and [job.output for job in jobs] == [5, 6, 7]
    assert [len(job.prompt) for job in jobs] == [600, 700, 6]
    assert jobs[0].prompt[:512] == jobs[1].prompt[:512], "equal hash ids are equal blocks"
    assert jobs[0].prompt[512:600] != jobs[1].prompt[512:600]
    assert work.trace_jobs(path, 2048, 4096, 1)[0].prompt != jobs[0].prompt, (
        "each pass has prompts of its own"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", ":2: "),
        ({"input_length": 5}, "output_length"),
        ({"input_length": 0, "output_length": 5}, "at least one prompt token"),
        ({"input_length": 4000, "output_length": 200}, "do not fit into 4096"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named(tmp_path: Path, line: object, said: str) -> None:
    path = written(tmp_path, {"input_length": 5, "output_length": 5}, line)
    with pytest.raises(Failure, match=said):
        work.trace_jobs(path, 2048, 4096, 0)


@given(st.lists(st.floats(1e-5, 5000), min_size=1, max_size=300))
def test_percentiles_are_within_one_per_cent(values: list[float]) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    for share in (0.01, 0.5, 0.95, 1.0):
        exact = ordered[max(1, math.ceil(share * len(values))) - 1]
        assert exact / 1.0101 <= histogram.percentile(share) <= exact * 1.0101
    summary = histogram.summary()
    assert summary is not None and summary.count == len(values)
    assert (summary.least, summary.most) == (min(values), max(values))
    assert math.isclose(summary.mean, statistics.fmean(values), rel_tol=1e-9)
