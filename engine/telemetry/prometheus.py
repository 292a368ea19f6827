"""The engine's counters as Prometheus reads them.

vLLM's names with its labels `model_name` and `engine`, so that dashboards and consoles made for it work; what it has no
name for stands under `arc:`, in names that hold no vLLM name inside (some consoles match by substring, first hit wins).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..sequence import FinishReason
from .records import Counters, Histogram

LABELS = ("model_name", "engine")
ENGINE = "0"  # vLLM's index of a data-parallel engine; one process is one engine here

# vLLM's words for how a request ended
_ENDED = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.DISCONNECTED: "abort",
    FinishReason.CAPACITY: "error",
    FinishReason.FAULT: "error",
}


class EngineCollector(Collector):
    """Reads `Counters` at each scrape. Called on any thread: every value is read once, see `Counters`."""

    def __init__(
        self,
        counters: Counters,
        *,
        model: str,
        page_size: int,
        pages: int,
        config_revision: Callable[[], int],
    ) -> None:
        self._counters = counters
        self._labels = (model, ENGINE)
        self._cache = {"block_size": str(page_size), "num_gpu_blocks": str(pages)}
        self._config_revision = config_revision

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are fixed and registered once, so that no scrape is needed to know them."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._cache_metrics()
        yield from self._tokens()
        yield from self._speculation()
        yield from self._histograms()
        yield from self._own()

    def _requests(self) -> Iterator[Metric]:
        c = self._counters
        yield self._gauge("vllm:num_requests_running", "Sequences that hold KV pages.", c.running)
        # before its namesake with reasons: consoles that search by substring must meet this one first
        yield self._gauge("vllm:num_requests_waiting", "Sequences that hold no pages yet.", c.waiting)
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason",
            "Sequences that are not in the step that ran, by the reason that each carries.",
            labels=(*LABELS, "reason"),
        )
        for reason, waiting in c.waiting_by_reason.copy().items():
            by_reason.add_metric((*self._labels, reason.value), waiting)
        yield by_reason
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that ended, by how.", labels=(*LABELS, "finished_reason")
        )
        totals = dict.fromkeys(_ENDED.values(), 0)
        for reason, count in c.finished.copy().items():
            totals[_ENDED[reason]] += count
        for word, count in totals.items():
            ended.add_metric((*self._labels, word), count)
        yield ended
        yield self._counter(
            "vllm:num_preemptions", "Times that a running sequence gave its pages to others.", c.preemptions
        )

    def _cache_metrics(self) -> Iterator[Metric]:
        c = self._counters
        total = c.pages_total
        used = c.pages_used / total if total else 0.0
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV pages that sequences hold, 0 to 1.", used
        )
        yield self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", c.prefix_queries
        )
        yield self._counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", c.prefix_hits
        )
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache as it was set up.", labels=(*LABELS, *self._cache)
        )
        info.add_metric((*self._labels, *self._cache.values()), 1)
        yield info

    def _tokens(self) -> Iterator[Metric]:
        c = self._counters
        yield self._counter(
            "vllm:prompt_tokens", "Prompt tokens of admitted sequences, each counted once.", c.prompt_tokens
        )
        yield self._counter("vllm:generation_tokens", "Tokens generated.", c.generation_tokens)

    def _speculation(self) -> Iterator[Metric]:
        c = self._counters
        accepted, drafted = c.accepted.copy(), c.drafted.copy()
        yield self._counter("vllm:spec_decode_num_drafts", "Rows whose drafts were verified.", c.draft_rows)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Drafts that were verified.", sum(drafted))
        # before its namesake by position: consoles that search by substring must meet this one first
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Drafts that the model itself chose.", sum(accepted)
        )
        by_place = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafts that the model itself chose, by their place in a row.",
            labels=(*LABELS, "position"),
        )
        for place, count in enumerate(accepted):
            by_place.add_metric((*self._labels, str(place)), count)
        yield by_place

    def _histograms(self) -> Iterator[Metric]:
        c = self._counters
        for name, text, histogram in (
            (
                "time_to_first_token_seconds",
                "From a request's arrival to its first token.",
                c.time_to_first_token,
            ),
            ("inter_token_latency_seconds", "Between two tokens of a request.", c.inter_token),
            (
                "request_time_per_output_token_seconds",
                "Mean over a request's tokens after its first.",
                c.time_per_output_token,
            ),
            ("e2e_request_latency_seconds", "From a request's arrival to its end.", c.end_to_end),
            ("request_queue_time_seconds", "From a request's arrival to its first admission.", c.queue),
            ("request_inference_time_seconds", "From a request's first admission to its end.", c.inference),
            (
                "request_prefill_time_seconds",
                "From a request's first admission to its first token.",
                c.prefill,
            ),
            ("request_decode_time_seconds", "From a request's first token to its last.", c.decode),
            ("request_prompt_tokens", "Prompt tokens of a request.", c.prompt_length),
            ("request_generation_tokens", "Tokens generated for a request.", c.generation_length),
            ("iteration_tokens_total", "Tokens computed in a step.", c.step_tokens),
        ):
            yield self._histogram(f"vllm:{name}", text, histogram)

    def _own(self) -> Iterator[Metric]:
        c = self._counters
        yield self._gauge(
            "arc:effective_batch", "Rows in the last step's forward; 0 when idle.", c.effective_batch
        )
        pages = GaugeMetricFamily("arc:pages", "KV pages by what they are.", labels=(*LABELS, "state"))
        for state, count in (("used", c.pages_used), ("cached", c.pages_cached), ("free", c.pages_free)):
            pages.add_metric((*self._labels, state), count)
        yield pages
        yield self._counter("arc:steps", "Steps run.", c.steps)
        seconds = CounterMetricFamily(
            "arc:step_seconds",
            "Time in steps, by part; the parts add up to the whole.",
            labels=(*LABELS, "part"),
        )
        for part, value in c.step_seconds.copy().items():
            seconds.add_metric((*self._labels, part), value)
        yield seconds
        copies = CounterMetricFamily(
            "arc:cache_copies",
            "Copies and allocations that put the cache of a batch together, a row's layer each, by what made them.",
            labels=(*LABELS, "operation"),
        )
        for operation, count in c.copies.copy().items():
            copies.add_metric((*self._labels, operation), count)
        yield copies
        spans = CounterMetricFamily(
            "arc:span_seconds",
            "Time in spans while profile.enabled is on, by span and channel; a channel that is not known is left out.",
            labels=(*LABELS, "span", "channel"),
        )
        for (span, channel), value in c.span_seconds.items():
            spans.add_metric((*self._labels, span, channel), value)
        yield spans
        yield self._counter("arc:step_faults", "Steps that failed.", c.faults)
        yield self._counter(
            "arc:recomputed", "Tokens computed again after a preemption.", c.recomputed_tokens
        )
        yield from self._allocator()
        yield self._gauge(
            "arc:config_revision", "Rises with every change of a flag.", self._config_revision()
        )

    def _allocator(self) -> Iterator[Metric]:
        a = self._counters.allocator
        yield self._counter("arc:allocator_hits", "Buffers that were taken from those free.", a.hits)
        yield self._counter(
            "arc:allocator_misses", "Buffers whose memory had to be had from the system.", a.misses
        )
        yield self._counter(
            "arc:allocator_evictions", "Buffers given back to the system to stay under the cap.", a.evictions
        )
        yield self._gauge("arc:allocator_held_bytes", "Memory that the allocator holds.", a.held)
        if a.cap is not None:  # unbounded, or off: there is no number that says so
            yield self._gauge("arc:allocator_cap_bytes", "Memory that it may hold.", a.cap)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        counts = histogram.counts.copy()  # one read: the engine thread may observe while this is written out
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        family = HistogramMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, list(zip(bounds, accumulate(counts), strict=True)), histogram.total)
        return family


def metrics_page(
    counters: Counters, *, model: str, page_size: int, pages: int, config_revision: Callable[[], int]
) -> Callable[[], bytes]:
    """What writes the page of `/metrics` in Prometheus' text format 0.0.4: the engine's metrics and the process's."""
    registry = CollectorRegistry()
    registry.register(
        EngineCollector(
            counters, model=model, page_size=page_size, pages=pages, config_revision=config_revision
        )
    )
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)
