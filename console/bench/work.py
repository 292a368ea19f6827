"""The work that a run sends: prompts and output lengths, drawn by a seed so that the same options send the same work.

A prompt is token ids, which every engine counts alike, or text where an endpoint takes nothing else.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ..exits import Failure

Shape = Literal["uniform", "mixed", "spread", "burstgpt", "mooncake"]
SHAPES: tuple[Shape, ...] = ("uniform", "mixed", "spread", "burstgpt", "mooncake")

FIRST_ID = 16  # low ids are special tokens in most vocabularies
APART = 128  # tokens between neighbours of `spread`: twice what bucketed admission runs together

# BurstGPT (Wang et al., arXiv 2401.17644; KDD 2025): lengths follow a Zipf law and gaps between arrivals a Gamma law.
# Its published generator (github.com/HPMLL/BurstGPT, example/) takes these two parameters.
BURSTGPT_ZIPF = 1.1
BURSTGPT_BURSTINESS = 0.5

# Mooncake's conversation trace (Qin et al., FAST 2025; FAST25-release/traces of github.com/kvcache-ai/Mooncake), read
# off its 12,031 requests: the quantiles of the lengths, and the share of 512-token prompt blocks that an earlier prompt
# began with as well. The trace's means are 12,035 and 343 tokens.
MOONCAKE_AT = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
MOONCAKE_PROMPTS = (891, 894, 964, 2306, 6909, 15368, 27367, 85401, 126195)
MOONCAKE_OUTPUTS = (1, 3, 24, 156, 350, 472, 597, 1120, 2000)
MOONCAKE_SHARED = 0.37
_EARLIER = 64  # prompts that a new one may begin like


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send."""

    prompt: tuple[int, ...] | str
    output: int  # tokens, end of sequence ignored
    at: float | None = None  # seconds after the run's begin; only jobs of a trace with times have it


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens: `low` to `high`, both included."""

    low: int
    high: int

    @property
    def middle(self) -> int:
        return round((self.low + self.high) / 2)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent: a shape of lengths and its bounds. `context` bounds prompt and output together, in tokens."""

    shape: Shape
    prompt: Lengths
    output: Lengths
    rows: int  # requests that are under way together: what `spread` spreads over
    vocab: int
    context: int

    def jobs(self, seed: int) -> Iterator[Job]:
        """Without end. Prompts of different seeds share no prefix, except what the shape itself repeats."""
        rng = random.Random(f"{self.shape} {seed}")
        pairs = _PAIRS[self.shape](self, rng)
        if self.shape == "mooncake":
            yield from self._conversations(rng, pairs)
            return
        for prompt, output in pairs:
            yield Job(token_ids(rng, self.vocab, prompt), output)

    def _conversations(self, rng: random.Random, pairs: Iterator[tuple[int, int]]) -> Iterator[Job]:
        """Prompts of which some begin as an earlier one does, as the turns of a conversation do."""
        earlier: list[tuple[int, ...]] = []
        for prompt, output in pairs:
            start: tuple[int, ...] = ()
            if earlier and rng.random() < 2 * MOONCAKE_SHARED:
                # Two of independent lengths share at most the shorter one: on average about half of the longer.
                start = rng.choice(earlier)[:prompt]
            ids = start + token_ids(rng, self.vocab, prompt - len(start))
            earlier = [*earlier[-_EARLIER + 1 :], ids]
            yield Job(ids, output)


def token_ids(rng: random.Random, vocab: int, length: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(FIRST_ID, vocab), k=length))


def _uniform(plan: Plan, _rng: random.Random) -> Iterator[tuple[int, int]]:
    return itertools.repeat((plan.prompt.middle, plan.output.middle))


def _mixed(plan: Plan, rng: random.Random) -> Iterator[tuple[int, int]]:
    while True:
        yield rng.randint(plan.prompt.low, plan.prompt.high), rng.randint(plan.output.low, plan.output.high)


def _spread(plan: Plan, _rng: random.Random) -> Iterator[tuple[int, int]]:
    """Rows that decode at the same time stand at KV lengths far apart: what shatters buckets."""
    room = plan.context - plan.output.high - plan.prompt.low
    apart = min(APART, room // max(plan.rows - 1, 1))
    for row in itertools.cycle(range(plan.rows)):
        yield plan.prompt.low + apart * row, plan.output.high


def _burstgpt(plan: Plan, rng: random.Random) -> Iterator[tuple[int, int]]:
    prompts, outputs = Zipf(BURSTGPT_ZIPF, plan.prompt), Zipf(BURSTGPT_ZIPF, plan.output)
    while True:
        yield prompts.draw(rng), outputs.draw(rng)


def _mooncake(plan: Plan, rng: random.Random) -> Iterator[tuple[int, int]]:
    """The trace's lengths, scaled by one factor where its longest request would not fit into the context."""
    scale = min(1.0, plan.context / (MOONCAKE_PROMPTS[-1] + MOONCAKE_OUTPUTS[-1]))
    while True:
        prompt = max(1, int(scale * quantile(MOONCAKE_PROMPTS, rng.random())))
        output = max(1, int(scale * quantile(MOONCAKE_OUTPUTS, rng.random())))
        yield prompt, output


_PAIRS: dict[Shape, Callable[[Plan, random.Random], Iterator[tuple[int, int]]]] = {
    "uniform": _uniform,
    "mixed": _mixed,
    "spread": _spread,
    "burstgpt": _burstgpt,
    "mooncake": _mooncake,
}


def quantile(values: Sequence[int], share: float) -> float:
    """Of a distribution known at MOONCAKE_AT; between two known points the logarithm runs straight."""
    index = min(bisect.bisect_right(MOONCAKE_AT, share), len(values) - 1)
    low, high = MOONCAKE_AT[index - 1], MOONCAKE_AT[index]
    part = (share - low) / (high - low)
    return math.exp((1 - part) * math.log(values[index - 1]) + part * math.log(values[index]))


class Zipf:
    """Zipf's law cut to [low, high]: P(n) is proportional to n ** -exponent."""

    def __init__(self, exponent: float, lengths: Lengths) -> None:
        self._low = lengths.low
        weights = (n**-exponent for n in range(lengths.low, lengths.high + 1))
        self._sums = list(itertools.accumulate(weights))

    def draw(self, rng: random.Random) -> int:
        return self._low + bisect.bisect_left(self._sums, rng.random() * self._sums[-1])


def balanced(lengths: Lengths, count: int, rng: random.Random) -> list[int]:
    """`count` lengths at even steps over the range, in random order: every draw of them has the same sum."""
    step = (lengths.high - lengths.low) / max(count - 1, 1)
    values = [round(lengths.low + step * index) for index in range(count)] if count > 1 else [lengths.middle]
    rng.shuffle(values)
    return values


# -- traces -----------------------------------------------------------------------------------------------------------


class TraceLine(msgspec.Struct, frozen=True):
    """One request of a JSONL trace, in the form that Mooncake's traces have; `prompt` is arc's own addition.

    `timestamp` is milliseconds since the trace began. Blocks of 512 tokens with equal `hash_ids` are equal blocks.
    """

    output_length: int
    input_length: int = 0
    timestamp: float | None = None
    hash_ids: tuple[int, ...] = ()
    prompt: str = ""


TRACE_BLOCK = 512  # tokens that one of `hash_ids` stands for


def trace_jobs(path: Path, vocab: int, context: int, seed: int) -> list[Job]:
    """The trace's requests in order. Raises Failure naming the line that cannot be sent."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None
    jobs = [
        _trace_job(line, f"{path}:{number}", vocab, context, seed)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not jobs:
        raise Failure(f"{path} has no request in it")
    return jobs


def _trace_job(line: bytes, where: str, vocab: int, context: int, seed: int) -> Job:
    try:
        read = msgspec.json.decode(line, type=TraceLine)
    except msgspec.DecodeError as error:
        raise Failure(
            f"{where}: {error}; a line has output_length, and input_length or prompt, and may have timestamp "
            "(milliseconds) and hash_ids"
        ) from None
    if read.output_length < 1 or (read.input_length < 1 and not read.prompt):
        raise Failure(f"{where}: a request has at least one prompt token and one output token")
    if read.input_length + read.output_length > context:
        raise Failure(
            f"{where}: {read.input_length} + {read.output_length} tokens do not fit into {context}, the model's context"
        )
    at = None if read.timestamp is None else read.timestamp / 1000
    if read.prompt:
        return Job(read.prompt, read.output_length, at)
    ids: tuple[int, ...] = ()
    for block in read.hash_ids:
        ids += token_ids(random.Random(f"{seed} {block}"), vocab, TRACE_BLOCK)
    rest = random.Random(f"{where} {seed}")
    ids = ids[: read.input_length]
    return Job(ids + token_ids(rest, vocab, read.input_length - len(ids)), read.output_length, at)


# -- arrivals ---------------------------------------------------------------------------------------------------------


def arrivals(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Seconds from the begin to each arrival. Gaps are Gamma with shape `burstiness` and mean 1 / rate.

    1 is a Poisson process; below 1 arrivals come in bursts (coefficient of variation 1 / sqrt(burstiness)).
    """
    now = 0.0
    while True:
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        yield now
