"""The rule on simulated engines with a known effect: coverage and false positives are what the rule states."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from arc.console.ab import statistics as ab

RUNS = 500
ALPHA = 0.05


def blocks(
    rng: random.Random, effect: float, noise: Callable[[random.Random], float], pairs: int
) -> list[float]:
    """What a simulated engine measures: load that drifts, blocks that scatter, and a flag that multiplies by `effect`.

    The drift is a random walk over the blocks: neighbours are alike, and the level wanders by far more than the effect.
    """
    level, values = 0.0, []
    for order in ab.orders(pairs, rng):
        measured = [0.0, 0.0]
        for arm in order:
            level += rng.gauss(0, 0.1)
            measured[arm] = math.exp(level + noise(rng)) * (effect if arm else 1.0)
        values.append(ab.log_ratio(*measured))
    return values


def gauss(rng: random.Random) -> float:
    return rng.gauss(0, 0.15)


def skewed(rng: random.Random) -> float:
    """A tenth of the blocks is hit by something that makes it much slower."""
    return rng.gauss(0, 0.1) + (rng.expovariate(2) if rng.random() < 0.1 else 0)


def experiment(
    seed: int, effect: float, noise: Callable[[random.Random], float], pairs: int = 20
) -> ab.Estimate:
    """Looked at as the real one is: it ends at the first look that decides."""
    rng = random.Random(seed)
    values = blocks(rng, effect, noise, pairs)
    for look, alpha in ab.spent(ALPHA, pairs).items():
        found = ab.estimate(values[:look], alpha, rng)
        if found.decided or look == pairs:
            return found
    raise AssertionError("the last look comes after all pairs")


@pytest.mark.parametrize("noise", [gauss, skewed])
def test_no_effect_is_found_where_there_is_none_more_often_than_stated(
    noise: Callable[[random.Random], float],
) -> None:
    """A limit of three standard errors above what is stated: a rule that keeps it fails once in 700 such tests."""
    false = sum(experiment(seed, 1.0, noise).decided for seed in range(RUNS))
    assert false <= RUNS * ALPHA + 3 * math.sqrt(RUNS * ALPHA * (1 - ALPHA))
    assert false <= RUNS * ALPHA, "these seeds: the rule is conservative"


def test_the_interval_covers_the_known_effect_whatever_stopped_the_experiment() -> None:
    found = [experiment(seed, 1.15, gauss) for seed in range(RUNS)]
    covered = sum(each.low <= 1.15 <= each.high for each in found)
    assert covered >= RUNS * (1 - ALPHA)
    early = sum(each.pairs < 20 for each in found)
    assert 0 < early < RUNS, "some stopped early and some did not, so both ways are covered"
    assert sum(each.decided and each.ratio > 1 for each in found) > RUNS * 0.5


def test_a_large_effect_ends_the_experiment_early() -> None:
    found = [experiment(seed, 4.0, gauss) for seed in range(40)]
    assert all(each.pairs <= ab.looks(20)[1] for each in found)
    assert all(each.decided and 3 < each.ratio < 5.5 for each in found)


def test_looking_without_spending_would_find_too_much() -> None:
    """That the test above can fail: the same experiments, each look judged as if it were the only one."""
    false = 0
    for seed in range(RUNS):
        rng = random.Random(seed)
        values = blocks(rng, 1.0, gauss, 20)
        for look in ab.looks(20):
            quantile = ab.t_quantile(1 - ALPHA / 2, look - 1)
            mean = sum(values[:look]) / look
            if abs(mean) > quantile * ab.standard_error(values[:look]):
                false += 1
                break
    assert false > RUNS * ALPHA + 3 * math.sqrt(RUNS * ALPHA * (1 - ALPHA))


@pytest.mark.parametrize("pairs", [4, 5, 7, 20, 133])
def test_the_looks_spend_all_of_the_error_and_no_more(pairs: int) -> None:
    spending = ab.spent(ALPHA, pairs)
    assert list(spending) == list(ab.looks(pairs)) and max(spending) == pairs
    assert all(part > 0 for part in spending.values())
    assert math.isclose(sum(spending.values()), ALPHA)
    assert len(spending) <= ab.LOOKS and min(spending) >= ab.LEAST_PAIRS


def test_fewer_pairs_than_a_look_needs_are_no_experiment() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        ab.looks(3)


@pytest.mark.parametrize(
    ("share", "freedom", "value"),  # Abramowitz and Stegun, table 26.10
    [
        (0.975, 1, 12.706), (0.975, 4, 2.776), (0.975, 19, 2.093), (0.995, 3, 5.841), (0.9995, 3, 12.924),
        (0.95, 60, 1.671), (0.9995, 120, 3.373),
    ],
)  # fmt: skip
def test_student_s_quantiles_are_those_of_the_table(share: float, freedom: int, value: float) -> None:
    assert abs(ab.t_quantile(share, freedom) - value) < 5.1e-4


def test_orders_are_fair_and_each_pair_has_both_arms() -> None:
    orders = ab.orders(4000, random.Random(1))
    assert set(orders) == {(0, 1), (1, 0)}
    assert abs(sum(order[0] for order in orders) - 2000) < 3.3 * math.sqrt(1000)


def test_an_interval_inside_the_margin_says_that_it_does_not_matter() -> None:
    close = ab.Estimate(ratio=1.0, low=0.985, high=1.015, confidence=0.95, pairs=20)
    assert close.within(0.02) and not close.within(0.01) and not close.decided
    assert not ab.Estimate(ratio=1.0, low=0.9, high=1.015, confidence=0.95, pairs=20).within(0.02)
