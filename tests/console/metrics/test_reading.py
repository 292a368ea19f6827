"""What is taken off a page, engine by engine, and what is said of the rest."""

from __future__ import annotations

import math

import pytest
from arc.console.metrics.page import NotMetrics
from arc.console.metrics.reading import MOST, Cumulative
from hypothesis import given
from hypothesis import strategies as st

from .pages import LOADED, histogram, line, reading, readings, sglang, vllm


def test_the_recorded_page_of_vllm() -> None:
    seen = reading(LOADED)
    assert (seen.kind, seen.model, seen.engine, seen.unit) == ("vLLM", "m", "0", "pages")
    assert seen.gauges["running"] == 32 and seen.gauges["waiting"] == 8
    assert seen.reasons == {"capacity": 8, "deferred": 0}
    assert seen.gauges["share"] == 0.1761252446183953
    assert (seen.gauges["used"], seen.gauges["total"]) == (90, 512)
    assert seen.counters["generation_tokens"] == 2781 and seen.counters["prompt_tokens"] == 6914
    assert seen.counters["steps"] == 89 and seen.counters["finished"] == 0
    assert seen.info["block_size"] == "128" and not {"engine", "model_name"} & set(seen.info)
    assert seen.started == 1.79598872976e09 and seen.resident == 6.4882688e08
    first = seen.histograms["first_token"]
    assert sum(first.counts) == 32 and len(first.counts) == len(first.bounds) + 1
    assert sum(seen.histograms["between_tokens"].counts) == 2749
    assert seen.why["cached"] and "spec_decode" in seen.why["draft_tokens"]


def test_the_names_of_sglang() -> None:
    page = sglang(
        num_running_reqs=3, num_queue_reqs=2, token_usage=0.25, num_used_tokens=250, max_total_num_tokens=1000,
        prompt_tokens_total=70, generation_tokens_total=12, cached_tokens_total=7, num_retracted_requests_total=1,
        num_requests_total=4, first=(0.15, 500.0), between=(0.003, 0.003),
    )  # fmt: skip
    seen = reading(page)
    assert (seen.kind, seen.model, seen.unit, seen.live_tokens) == (
        "SGLang", "deepseek-ai/DeepSeek-V3", "tokens", False,
    )  # fmt: skip
    assert seen.gauges == {"running": 3, "waiting": 2, "share": 0.25, "used": 250, "total": 1000}
    assert seen.counters == {
        "prompt_tokens": 70, "generation_tokens": 12, "prefix_queries": 70, "prefix_hits": 7, "preemptions": 1,
        "finished": 4,
    }  # fmt: skip
    assert seen.reasons is None
    assert seen.histograms["first_token"].counts[1] == 1 and seen.histograms["first_token"].counts[-1] == 1
    assert "queue_time_seconds" in seen.why["queue"]


def test_the_realtime_counters_of_sglang_go_before_those_that_rise_as_a_request_ends() -> None:
    name = "sglang:realtime_tokens_total"
    text = sglang(prompt_tokens_total=1, generation_tokens_total=1) + "".join(
        line(name, value, {"model_name": "deepseek-ai/DeepSeek-V3", "mode": mode})
        for mode, value in (("prefill_compute", 100.0), ("prefill_cache", 40.0), ("decode", 30.0))
    )
    seen = reading(text)
    assert seen.live_tokens
    assert (seen.counters["prompt_tokens"], seen.counters["generation_tokens"]) == (140, 30)
    assert (seen.counters["prefix_queries"], seen.counters["prefix_hits"]) == (140, 40)


def test_names_that_old_servers_send() -> None:
    text = vllm(
        num_requests_running=2, num_requests_waiting=1, num_requests_swapped=3, gpu_cache_usage_perc=0.5,
        gpu_prefix_cache_queries_total=10, gpu_prefix_cache_hits_total=4,
    )  # fmt: skip
    labels = {"engine": "0", "model_name": "m"}
    text += histogram("vllm:time_per_output_token_seconds", (0.1, 0.2), (0.05, 0.15), labels)
    seen = reading(text)
    assert seen.gauges["waiting"] == 4 and seen.reasons == {"swapped": 3}
    assert seen.gauges["share"] == 0.5 and "used" in seen.why  # how many pages there are is not said
    assert (seen.counters["prefix_queries"], seen.counters["prefix_hits"]) == (10, 4)
    assert seen.histograms["between_tokens"] == Cumulative((0.1, 0.2), (1, 1, 0))


def test_a_new_name_goes_before_the_retired_one() -> None:
    seen = reading(vllm(kv_cache_usage_perc=0.25, gpu_cache_usage_perc=0.75))
    assert seen.gauges["share"] == 0.25


def test_data_parallel_engines_are_split_by_their_label_in_the_order_of_numbers() -> None:
    text = "".join(vllm(str(n), num_requests_running=n, generation_tokens_total=100 * n) for n in (10, 9, 0))
    seen = readings(text + "process_start_time_seconds 5.0\n")
    assert [each.engine for each in seen] == ["0", "9", "10"]
    assert [each.counters["generation_tokens"] for each in seen] == [0, 900, 1000]
    assert all(each.started is None for each in seen)  # the process is none of theirs


def test_what_is_counted_for_all_engines_together_is_no_single_ones() -> None:
    ranks = [{"dp_rank": "0", "tp_rank": "0"}, {"dp_rank": "1", "tp_rank": "4"}]
    seen = readings(sglang(ranks=ranks, num_running_reqs=5, generation_tokens_total=1000))
    assert [each.engine for each in seen] == ["0", "1"] and all(each.gauges["running"] == 5 for each in seen)
    assert all("generation_tokens" not in each.counters for each in seen)
    assert all("for all engines of the page together" in each.why["generation_tokens"] for each in seen)


def test_ranks_of_one_engine_count_once() -> None:
    ranks = [{"tp_rank": str(n)} for n in (10, 2, 1)]
    seen = reading(sglang(ranks=ranks, num_running_reqs=5))
    assert seen.gauges["running"] == 5


def test_a_page_without_engine_labels_is_one_engine() -> None:
    seen = reading("vllm:num_requests_running 2\nvllm:generation_tokens_total 9\n")
    assert (seen.model, seen.engine, seen.gauges["running"]) == ("", "", 2)
    assert seen.counters["generation_tokens"] == 9 and "not on the page" in seen.why["waiting"]


NUMBER = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-5, 5).map(float), st.floats(0, 2 * MOST)
)


@given(st.dictionaries(st.sampled_from([
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total",
    "prompt_tokens_total", "prefix_cache_hits_total", "request_success_total", "num_requests_swapped",
]), NUMBER))  # fmt: skip
def test_no_number_that_is_none_gets_in(numbers: dict[str, float]) -> None:
    seen = reading(vllm(**numbers))
    for name, value in {**seen.gauges, **seen.counters}.items():
        assert math.isfinite(value) and value >= 0, name
    assert 0 <= seen.gauges.get("share", 0) <= 1
    for name in ("running", "waiting", "share"):
        assert (name in seen.gauges) != (name in seen.why)
    for name in ("generation_tokens", "prompt_tokens", "prefix_hits", "finished"):
        assert (name in seen.counters) != (name in seen.why)


@given(st.lists(st.tuples(st.one_of(st.floats(allow_nan=True), st.just(math.inf)), NUMBER), max_size=6))
def test_buckets_are_whole_or_there_is_no_histogram(buckets: list[tuple[float, float]]) -> None:
    labels = {"engine": "0", "model_name": "m"}
    name = "vllm:time_to_first_token_seconds_bucket"
    text = vllm() + "".join(line(name, value, {**labels, "le": repr(bound)}) for bound, value in buckets)
    seen = reading(text)
    found = seen.histograms.get("first_token")
    assert (found is None) == ("first_token" in seen.why)
    if found is not None:
        assert all(count >= 0 for count in found.counts) and len(found.counts) == len(found.bounds) + 1
        assert list(found.bounds) == sorted(set(found.bounds)) and all(map(math.isfinite, found.bounds))


def test_histograms_with_labels_of_their_own_are_merged() -> None:
    labels = {"engine": "0", "model_name": "m"}
    name = "vllm:request_queue_time_seconds"
    text = vllm() + "".join(
        histogram(name, (1, 2), values, {**labels, "priority": str(at)})
        for at, values in enumerate([(0.5, 1.5), (1.5, 9.0)])
    )
    assert reading(text).histograms["queue"] == Cumulative((1.0, 2.0), (1, 2, 1))


def test_a_page_of_nobody_known_names_what_it_begins_with() -> None:
    with pytest.raises(NotMetrics, match="begins with node_cpu"):
        reading("node_cpu 1\n")
