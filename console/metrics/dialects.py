"""What each kind of engine calls what the console shows. First name found wins: retired names stand after new ones.

Quantities have the names of the samples' fields (engine/control/protocol.py, Sample), so one table feeds one view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LATENCIES = ("first_token", "between_tokens", "queue", "end_to_end")


@dataclass(frozen=True, slots=True)
class Pick:
    """One series of a page, or the sum of those whose label has one of the values."""

    name: str
    label: str = ""
    values: tuple[str, ...] = ()


Picks = tuple[Pick, ...]


def _named(*names: str) -> Picks:
    return tuple(Pick(name) for name in names)


@dataclass(frozen=True, slots=True)
class Dialect:
    """`live_tokens`: tokens are counted while they are generated, not when their request ends."""

    kind: str
    prefix: str
    engine_label: str  # tells data-parallel engines of one page apart
    gauges: Mapping[str, Picks]
    counters: Mapping[str, Picks]
    latencies: Mapping[str, tuple[str, ...]]
    reasons: str = ""  # the gauge of waiting by its label `reason`
    info: str = ""  # the gauge whose labels say how the cache was set up
    unit: str = "pages"  # of what the KV cache is made
    live_tokens: bool = True

    def names(self) -> set[str]:
        """Every series that is read."""
        picks = [pick for each in (*self.gauges.values(), *self.counters.values()) for pick in each]
        found = {pick.name for pick in picks} | {self.reasons, self.info} - {""}
        for bases in self.latencies.values():
            found |= {f"{base}_bucket" for base in bases}
        return found


# vLLM: vllm/v1/metrics/loggers.py; the page of 0.32 is in tests/data. Retired: gpu_cache_usage_perc,
# gpu_prefix_cache_*, time_per_output_token_seconds, num_requests_swapped.
VLLM = Dialect(
    kind="vLLM",
    prefix="vllm:",
    engine_label="engine",
    gauges={
        "running": _named("vllm:num_requests_running"),
        "waiting": _named("vllm:num_requests_waiting"),
        "swapped": _named("vllm:num_requests_swapped"),
        "share": _named("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "asleep": (Pick("vllm:engine_sleep_state", "sleep_state", ("weights_offloaded", "discard_all")),),
    },
    counters={
        "steps": _named("vllm:iteration_tokens_total_count"),
        "prompt_tokens": _named("vllm:prompt_tokens_total"),
        "generation_tokens": _named("vllm:generation_tokens_total"),
        "prefix_queries": _named("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prefix_hits": _named("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        "preemptions": _named("vllm:num_preemptions_total"),
        "finished": _named("vllm:request_success_total"),
        "drafted": _named("vllm:spec_decode_num_draft_tokens_total"),
        "accepted": _named("vllm:spec_decode_num_accepted_tokens_total"),
    },
    latencies={
        "first_token": ("vllm:time_to_first_token_seconds",),
        "between_tokens": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "queue": ("vllm:request_queue_time_seconds",),
        "end_to_end": ("vllm:e2e_request_latency_seconds",),
    },
    reasons="vllm:num_requests_waiting_by_reason",
    info="vllm:cache_config_info",
)

# SGLang: python/sglang/srt/metrics/collector.py. Its plain token counters rise when a request ends; the realtime
# ones, where a server has them, rise while it runs.
SGLANG = Dialect(
    kind="SGLang",
    prefix="sglang:",
    engine_label="dp_rank",
    gauges={
        "running": _named("sglang:num_running_reqs"),
        "waiting": _named("sglang:num_queue_reqs"),
        "share": _named("sglang:token_usage"),
        "used": _named("sglang:num_used_tokens"),
        "total": _named("sglang:max_total_num_tokens"),
    },
    counters={
        "prompt_tokens": (
            Pick("sglang:realtime_tokens_total", "mode", ("prefill_compute", "prefill_cache")),
            Pick("sglang:prompt_tokens_total"),
        ),
        "generation_tokens": (
            Pick("sglang:realtime_tokens_total", "mode", ("decode",)),
            Pick("sglang:generation_tokens_total"),
        ),
        "prefix_queries": (
            Pick("sglang:realtime_tokens_total", "mode", ("prefill_compute", "prefill_cache")),
            Pick("sglang:prompt_tokens_total"),
        ),
        "prefix_hits": (
            Pick("sglang:realtime_tokens_total", "mode", ("prefill_cache",)),
            Pick("sglang:cached_tokens_total"),
        ),
        "preemptions": _named("sglang:num_retracted_requests_total"),
        "finished": _named("sglang:num_requests_total"),
    },
    latencies={
        "first_token": ("sglang:time_to_first_token_seconds",),
        "between_tokens": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "queue": ("sglang:queue_time_seconds",),
        "end_to_end": ("sglang:e2e_request_latency_seconds",),
    },
    unit="tokens",
    live_tokens=False,
)

# arc's own page: vLLM's names, and what it has no name for under `arc:` (engine/telemetry/prometheus.py).
ARC = Dialect(
    kind="arc",
    prefix="arc:",
    engine_label=VLLM.engine_label,
    gauges={
        **{name: VLLM.gauges[name] for name in ("running", "waiting", "share")},
        "effective": _named("arc:effective_batch"),
        "used": (Pick("arc:pages", "state", ("used",)),),
        "cached": (Pick("arc:pages", "state", ("cached",)),),
        "free": (Pick("arc:pages", "state", ("free",)),),
        "revision": _named("arc:config_revision"),
    },
    counters={
        **{name: picks for name, picks in VLLM.counters.items() if name not in ("drafted", "accepted")},
        "steps": _named("arc:steps_total"),
        "step_seconds": _named("arc:step_seconds_total"),
        "forward_seconds": (Pick("arc:step_seconds_total", "part", ("forward",)),),
        "faults": _named("arc:step_faults_total"),
    },
    latencies=VLLM.latencies,
    reasons=VLLM.reasons,
    info=VLLM.info,
)

DIALECTS = (ARC, VLLM, SGLANG)  # arc's page has vLLM's names too: the first whose prefix is there
STARTED = "process_start_time_seconds"
RESIDENT = "process_resident_memory_bytes"
_WANTED = frozenset({STARTED, RESIDENT}).union(*(dialect.names() for dialect in DIALECTS))
_PREFIXES = tuple(dialect.prefix for dialect in DIALECTS)


def wanted(name: str) -> bool:
    return name in _WANTED


def spoken(name: str) -> Dialect | None:
    """Whose metric that is."""
    return next((dialect for dialect in DIALECTS if name.startswith(dialect.prefix)), None)
