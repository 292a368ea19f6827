"""Whether the engines' greedy tokens are the same where the arithmetic allows it.

In fp32 only a near tie can part two engines. In bf16 every sum is rounded, in each engine in another order; there, each
parting is shown with what our fp32 says about it: how far apart the two tokens' log-probabilities are.
"""

from __future__ import annotations

import json
import statistics
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arc.console.bench.work import Job

from ..bench import workloads
from .engines import ENGINES
from .installs import InstallError
from .measure import EngineError, Visit, greedy, running
from .report import OURS

PROMPTS = 4
BEST = 20  # the most log-probabilities that the API gives for a place

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two engines' greedy tokens go apart."""

    prompt: Tokens
    same: Tokens  # what both gave before
    next: tuple[int, int] | None  # ours and theirs; None: they never part


def parting(job: Job, ours: Tokens, theirs: Tokens) -> Parting:
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            return Parting(_ids(job), ours[:place], (a, b))
    return Parting(_ids(job), ours, None)


def _ids(job: Job) -> Tokens:
    assert not isinstance(job.prompt, str)
    return tuple(job.prompt)


def check(
    names: Sequence[str], model: Path, vocab: int, cores: tuple[int, ...], visits: list[Visit]
) -> list[str]:
    """Lines that say it: each engine once more in fp32 on the same few prompts, and the bf16 partings of `visits`."""
    jobs = workloads.uniform(PROMPTS, vocab, seed=2000)
    exact: dict[str, list[Tokens]] = {}
    lines: list[str] = []
    for name in names:
        if name != OURS:
            print(f"greedy tokens in fp32: {name}", file=sys.stderr, flush=True)
            try:
                with running(ENGINES[name], model, cores, "float32") as (_, base, _started):
                    exact[name] = greedy(ENGINES[name], base, jobs)
            except (EngineError, InstallError) as error:
                lines.append(f"{name} in fp32: {error}")
    with running(ENGINES[OURS], model, cores, "float32") as (_, base, _started):
        own = greedy(ENGINES[OURS], base, jobs)
        for name, theirs in exact.items():
            found = [parting(job, a, b) for job, a, b in zip(jobs, own, theirs, strict=True)]
            lines.append(f"{name} in fp32: {_told(base, found)}")
        for name, found in bf16_partings(visits, vocab):
            lines.append(f"{name} in bf16: {_told(base, found)}")
        lines.append(
            f"for scale: the best two are {_usual(base, jobs, own):.4f} apart at the median place of these paths"
        )
    return lines


def bf16_partings(visits: Sequence[Visit], vocab: int) -> Iterator[tuple[str, list[Parting]]]:
    """Of the single uniform request of each repetition, peer by peer."""
    turns: dict[str, list[Tokens]] = {}
    for visit in visits:
        if "uniform 1" in visit.sent:
            turns.setdefault(visit.engine, []).append(visit.sent["uniform 1"].tokens[0])
    ours = turns.pop(OURS, [])
    for name, theirs in turns.items():
        jobs = (workloads.uniform(1, vocab, turn)[0] for turn in range(len(theirs)))
        yield name, [parting(*each) for each in zip(jobs, ours, theirs, strict=False)]


def _told(base: str, found: Sequence[Parting]) -> str:
    words: list[str] = []
    for each in found:
        if each.next is None:
            words.append(f"all {len(each.same)} tokens are ours")
            continue
        best = _best(base, (*each.prompt, *each.same))
        known = [best[token] for token in each.next if token in best]
        apart = (
            f"{abs(known[0] - known[1]):.4f} apart" if len(known) == 2 else f"not both among the best {BEST}"
        )
        words.append(f"the first {len(each.same)}, then {apart}")
    return "; ".join(words)


def _usual(base: str, jobs: Sequence[Job], own: Sequence[Tokens]) -> float:
    """The median distance of the best two log-probabilities, at every 16th place of these paths."""
    gaps: list[float] = []
    for job, tokens in zip(jobs, own, strict=True):
        for place in range(0, len(tokens), 16):
            first, second, *_ = sorted(_best(base, (*_ids(job), *tokens[:place])).values(), reverse=True)
            gaps.append(first - second)
    return statistics.median(gaps)


def _best(base: str, prompt: Tokens) -> dict[int, float]:
    """The log-probabilities of the most likely next tokens, by our engine."""
    body = {
        "model": "bench", "prompt": list(prompt), "max_tokens": 1, "temperature": 0, "logprobs": BEST,
        "return_tokens_as_token_ids": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        (choice,) = json.load(answer)["choices"]
    return {
        int(name.removeprefix("token_id:")): value
        for name, value in choice["logprobs"]["top_logprobs"][0].items()
    }
