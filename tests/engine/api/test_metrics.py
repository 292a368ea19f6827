"""The page of `/metrics`: it parses, and where vLLM has the same metric it is the same metric."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from arc.engine.sequence import FinishReason, WaitReason
from arc.engine.telemetry.prometheus import metrics_page
from arc.engine.telemetry.records import Counters, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from .conftest import Serve
from .scripted import ScriptedEngine

VLLM = Path(__file__).parents[2] / "data" / "vllm-0.32" / "loaded.txt"

# all of vLLM's names that the engine must carry
CARRIED = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:num_preemptions",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
    "vllm:cache_config_info",
}


# vLLM has these where it speculates, which the recorded engine did not: vllm/v1/spec_decode/metrics.py
SPECULATION = {
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
}


def busy() -> Counters:
    counters = Counters(running=3, waiting=5, pages_total=128, pages_used=32, pages_cached=6, pages_free=90)
    counters.waiting_by_reason[WaitReason.NO_PAGES] = 4
    counters.waiting_by_reason[WaitReason.QUEUED] = 1
    counters.finished |= {FinishReason.STOP: 1, FinishReason.CANCELLED: 2, FinishReason.DISCONNECTED: 3}
    counters.prompt_tokens, counters.generation_tokens = 70, 12
    counters.allocator.cap = 64 << 20
    for seconds in (0.0005, 0.001, 0.3, 99999.0):
        counters.time_to_first_token.observe(seconds)
    counters.inter_token.observe(0.02, times=5)
    counters.step_tokens.observe(64)
    counters.draft_rows, counters.drafted, counters.accepted = 9, [9, 8, 0, 0], [7, 3, 0, 0]
    return counters


def page(counters: Counters, model: str = "austen", revision: int = 7) -> str:
    return metrics_page(
        counters, model=model, page_size=16, pages=128, config_revision=lambda: revision
    )().decode()


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text: str, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, f"{name}{labels}: {len(found)} samples"
    return found[0]


def test_carries_all_of_vllms_names_with_its_types_and_labels():
    ours, theirs = families(page(busy())), families(VLLM.read_text())
    assert {name for name in ours if name.startswith("vllm:")} == CARRIED | SPECULATION
    for name in CARRIED:
        assert ours[name].type == theirs[name].type, name
        if name == "vllm:cache_config_info":
            continue  # its labels are the configuration itself
        samples = {sample.name for sample in ours[name].samples}
        assert samples <= {sample.name for sample in theirs[name].samples}, name
        their_labels = {frozenset(sample.labels) for sample in theirs[name].samples}
        assert {frozenset(sample.labels) for sample in ours[name].samples} <= their_labels, name


def test_speculation_counts_in_all_and_by_position():
    text = page(busy())
    assert value(text, "vllm:spec_decode_num_drafts_total") == 9
    assert value(text, "vllm:spec_decode_num_draft_tokens_total") == 17
    assert value(text, "vllm:spec_decode_num_accepted_tokens_total") == 10
    by_position = [
        value(text, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(place))
        for place in range(4)
    ]
    assert by_position == [7, 3, 0, 0]


def test_spans_have_their_seconds_by_channel_and_what_is_not_known_is_left_out() -> None:
    counters = busy()
    assert "arc:span_seconds_total{" not in page(counters)
    counters.set_span_seconds(
        {("step", "wall"): 2.5, ("step/decode", "wall"): 2.0, ("step", "host_self"): 0.5}
    )
    lines = [line for line in page(counters).splitlines() if line.startswith("arc:span_seconds_total{")]
    assert len(lines) == 3
    assert any(
        'span="step/decode"' in line and 'channel="wall"' in line and line.endswith(" 2.0") for line in lines
    )
    assert not any('channel="device"' in line for line in lines)


def test_histogram_bounds_hold_vllms_up_to_what_it_resolves():
    """A dashboard's `histogram_quantile` over both engines needs the bounds that both have."""
    ours, theirs = families(page(busy())), families(VLLM.read_text())

    def bounds(family: Metric) -> set[float]:
        return {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels}

    for name in (
        "vllm:time_to_first_token_seconds",
        "vllm:iteration_tokens_total",
        "vllm:request_prompt_tokens",
    ):
        shared = bounds(ours[name]) & bounds(theirs[name])
        assert len(shared) >= 0.8 * len(bounds(theirs[name])), name


def test_cache_shape():
    text = page(Counters())
    assert value(text, "vllm:cache_config_info", block_size="16", num_gpu_blocks="128") == 1


def test_values():
    text = page(busy())
    assert value(text, "vllm:num_requests_running", model_name="austen", engine="0") == 3
    assert value(text, "vllm:num_requests_waiting") == 5
    assert value(text, "vllm:num_requests_waiting_by_reason", reason="no pages") == 4
    assert value(text, "vllm:kv_cache_usage_perc") == 0.25
    assert value(text, "vllm:request_success_total", finished_reason="abort") == 5
    assert value(text, "vllm:request_success_total", finished_reason="error") == 0
    assert value(text, "vllm:prompt_tokens_total") == 70
    assert value(text, "vllm:generation_tokens_total") == 12
    assert value(text, "vllm:inter_token_latency_seconds_count") == 5
    assert math.isclose(value(text, "vllm:inter_token_latency_seconds_sum"), 0.1)
    assert value(text, "arc:config_revision") == 7
    assert value(text, "arc:pages", state="cached") == 6


def test_histogram_is_cumulative_and_bounds_are_inclusive():
    text = page(busy())
    name = "vllm:time_to_first_token_seconds"
    assert value(text, f"{name}_bucket", le="0.001") == 2  # 0.0005, and 0.001 itself
    assert value(text, f"{name}_bucket", le="0.25") == 2
    assert value(text, f"{name}_bucket", le="0.5") == 3
    assert value(text, f"{name}_bucket", le="2560.0") == 3
    assert value(text, f"{name}_bucket", le="+Inf") == value(text, f"{name}_count") == 4


def test_waiting_comes_before_waiting_by_reason():
    """Some consoles take the first line that holds a name."""
    names = re.findall(r"^(vllm:num_requests_waiting\w*)", page(busy()), re.MULTILINE)
    assert names[0] == "vllm:num_requests_waiting"
    assert set(names[1:]) == {"vllm:num_requests_waiting_by_reason"}


def test_no_own_name_holds_one_of_vllms():
    """Those consoles would take it for vLLM's."""
    fragments = {
        name.removeprefix("vllm:") for name in families(VLLM.read_text()) if name.startswith("vllm:")
    }
    fragments |= {"time_per_output_token_seconds", "gpu_cache_usage_perc", "num_requests_swapped"}
    own = [name for name in families(page(busy())) if name.startswith("arc:")]
    assert len(own) >= 6
    assert [(name, part) for name in own for part in fragments if part in name] == []


def test_model_names_are_escaped():
    name = 'a"b\\c\nd'
    assert value(page(Counters(), model=name), "vllm:num_requests_running", model_name=name) == 0


def test_no_pages_at_all_is_no_division_by_zero():
    assert value(page(Counters()), "vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize("field", ["running", "waiting", "effective_batch", "pages_used"])
async def test_gauges_are_of_now_also_when_idle(serve: Serve, field: str):
    engine = ScriptedEngine()
    engine.counters.pages_total = 10
    async with serve(engine) as api:
        pages: list[str] = []
        for now in (4, 0):
            setattr(engine.counters, field, now)
            async with api.http.get(f"{api.url}/metrics") as response:
                assert response.status == 200
                assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                pages.append(await response.text())
    changed = [line.partition(" ")[0] for line in pages[0].splitlines() if line not in pages[1].splitlines()]
    assert any(line.startswith(("vllm:", "arc:")) for line in changed), (
        "the second scrape shows the first's value"
    )


def test_a_histogram_read_while_it_is_written_stays_consistent():
    """The engine thread may observe between two reads: count and the last bucket still are one number."""

    class Moving(list[int]):
        def copy(self) -> list[int]:
            taken = list(self)
            self[-1] += 1  # the engine's next observation
            return taken

    counters = Counters()
    histogram = Histogram((1.0, 2.0))
    histogram.counts = Moving([1, 1, 1])
    counters.queue = histogram
    text = page(counters)
    name = "vllm:request_queue_time_seconds"
    assert value(text, f"{name}_bucket", le="+Inf") == value(text, f"{name}_count") == 3
