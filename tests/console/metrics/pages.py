"""Metrics pages for the tests: the recorded ones of vLLM, and ones of any numbers in the names of each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from arc.console.metrics import dialects
from arc.console.metrics.page import parse
from arc.console.metrics.reading import Reading, read

VLLM_0_32 = Path(__file__).resolve().parents[2] / "data" / "vllm-0.32"
IDLE = (VLLM_0_32 / "idle.txt").read_text(encoding="utf-8")
LOADED = (VLLM_0_32 / "loaded.txt").read_text(encoding="utf-8")

Bounds = Sequence[float]
# SGLang's own, of python/sglang/srt/metrics/collector.py
SGLANG_FIRST_TOKEN = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
SGLANG_BETWEEN = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.010,
    0.015,
    0.020,
    0.025,
    0.030,
    0.035,
    0.040,
    0.060,
    0.080,
    0.1,
    0.2,
)


def readings(text: str) -> tuple[Reading, ...]:
    return read(parse(text, dialects.wanted))


def reading(text: str) -> Reading:
    (only,) = readings(text)
    return only


def line(name: str, value: float, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value!r}\n"


def histogram(name: str, bounds: Bounds, values: Sequence[float], labels: Mapping[str, str]) -> str:
    lines = [
        line(f"{name}_bucket", sum(value <= bound for value in values), {**labels, "le": f"{bound:g}"})
        for bound in bounds
    ]
    lines.append(line(f"{name}_bucket", len(values), {**labels, "le": "+Inf"}))
    lines.append(line(f"{name}_count", len(values), labels))
    lines.append(line(f"{name}_sum", sum(values), labels))
    return f"# TYPE {name} histogram\n" + "".join(lines)


def vllm(engine: str = "0", model: str = "m", /, *, started: float | None = None, **numbers: float) -> str:
    """A page with these of vLLM's numbers, by their names without `vllm:`."""
    labels = {"engine": engine, "model_name": model}
    names = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, **numbers}
    text = "".join(line(f"vllm:{name}", value, labels) for name, value in names.items())
    return text + ("" if started is None else f"process_start_time_seconds {started!r}\n")


def sglang(
    *,
    first: Sequence[float] = (),
    between: Sequence[float] = (),
    ranks: Sequence[Mapping[str, str]] = ({},),
    **numbers: float,
) -> str:
    """A page in SGLang's names: the scheduler's gauges once for each of the `ranks`, the rest once."""
    scheduler = {
        "num_running_reqs": 0, "num_queue_reqs": 0, "token_usage": 0, "num_used_tokens": 0, "max_total_num_tokens": 0,
        "cache_hit_rate": 0, "gen_throughput": 0, "num_retracted_requests_total": 0,
    }  # fmt: skip
    served = {
        "prompt_tokens_total": 0,
        "generation_tokens_total": 0,
        "cached_tokens_total": 0,
        "num_requests_total": 0,
    }
    base = {"model_name": "deepseek-ai/DeepSeek-V3"}
    text = ""
    for rank in ranks:
        labels = {"engine_type": "unified", **base, "pp_rank": "0", "tp_rank": "0", **rank}
        text += "".join(
            line(f"sglang:{name}", numbers.get(name, value), labels) for name, value in scheduler.items()
        )
    text += "".join(line(f"sglang:{name}", numbers.get(name, value), base) for name, value in served.items())
    text += histogram("sglang:time_to_first_token_seconds", SGLANG_FIRST_TOKEN, first, base)
    return text + histogram("sglang:inter_token_latency_seconds", SGLANG_BETWEEN, between, base)


def between(idle: str, loaded: str, share: Callable[[str], float]) -> str:
    """A page whose numbers lie between those of two: `share` of the way, for each name."""
    lines = []
    for low, high in zip(idle.splitlines(), loaded.splitlines(), strict=True):
        if low == high or low.startswith("#"):
            lines.append(low)
            continue
        name, value = low.rsplit(" ", 1)
        there = float(value) + (float(high.rsplit(" ", 1)[1]) - float(value)) * share(name.partition("{")[0])
        lines.append(f"{name} {there if 'perc' in name else round(there)}")
    return "\n".join(lines) + "\n"
