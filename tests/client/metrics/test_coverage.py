"""Do intervals cover, and do comparisons find what is there and nothing else? By simulation, with fixed seeds.

A prompt has a length and a chance p with which each draft token is right, on its own; rounds follow from it as in a
walk. Lengths and difficulties differ by prompt, independently or not.
"""

import numpy as np
import pytest

from tauscope_client.metrics.intervals import difference_interval, minimum_detectable_difference, ratio_interval
from tauscope_client.metrics.prompts import Ratio

pytestmark = pytest.mark.slow

NUM_DRAFTS, LONGEST = 15, 600
NUM_TRIALS = 1000
# At 1000 trials the share of covering intervals is itself known to +-0.014 (two standard errors at 0.95).
NOISE = 0.014
# Bootstrap intervals of ratios under-cover a little when long prompts are also the odd ones.
SHORTFALL_AT_50, SHORTFALL_AT_10 = 0.025, 0.045

# Spread of log length, spread of logit p, how far the two go together.
POPULATIONS = {
    "alike": (0.3, 0.4, 0.0),
    "unequal": (0.8, 1.0, 0.0),
    "long is easy": (0.8, 0.8, 0.7),
    "long is hard": (0.8, 0.8, -0.7),
}


def draw_prompts(rng: np.random.Generator, num_prompts: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and logits of p."""
    length_spread, spread, together = POPULATIONS[kind]
    shared = rng.normal(size=num_prompts)
    own = rng.normal(size=num_prompts)
    lengths = np.exp(np.log(100) + length_spread * shared).clip(8, LONGEST).astype(int)
    return lengths, 0.8 + spread * (together * shared + (1 - together**2) ** 0.5 * own)


def walk_prompts(rng: np.random.Generator, lengths: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Emitted tokens and rounds of each prompt, [n, 2]."""
    p = 1 / (1 + np.exp(-logits))
    accepted = np.minimum(rng.geometric(1 - p[:, None], size=(lengths.size, lengths.max())) - 1, NUM_DRAFTS)
    before = np.cumsum(accepted + 1, axis=1) - (accepted + 1)
    return np.stack([lengths - 1, (before < (lengths - 1)[:, None]).sum(axis=1)], axis=1).astype(float)


def ratios(data: np.ndarray) -> list[Ratio]:
    return [Ratio(*row) for row in data.tolist()]


def true_tau(kind: str, shift: float = 0.0) -> float:
    rng = np.random.default_rng(12345)
    totals = np.zeros(2)
    for _ in range(50):
        lengths, logits = draw_prompts(rng, 2000, kind)
        totals += walk_prompts(rng, lengths, logits + shift).sum(axis=0)
    return float(totals[0] / totals[1])


@pytest.mark.parametrize("kind", POPULATIONS)
@pytest.mark.parametrize(("num_prompts", "shortfall"), [(10, SHORTFALL_AT_10), (50, SHORTFALL_AT_50)])
def test_intervals_cover_the_truth_near_their_nominal_rate(kind: str, num_prompts: int, shortfall: float) -> None:
    truth, rng = true_tau(kind), np.random.default_rng(num_prompts)
    covered = 0
    for trial in range(NUM_TRIALS):
        found = ratio_interval(ratios(walk_prompts(rng, *draw_prompts(rng, num_prompts, kind))), seed=trial)
        covered += found.low <= truth <= found.high
    print(f"{kind}, {num_prompts} prompts: {covered / NUM_TRIALS}")
    assert 0.95 - shortfall - NOISE <= covered / NUM_TRIALS <= 0.95 + 0.03


def simulate_comparisons(num_prompts: int, shift: float) -> tuple[float, float, float]:
    """Shares of trials that find the second better, and the first; and the mean detectable difference."""
    rng = np.random.default_rng(2026)
    better, worse, detectable = 0, 0, []
    for trial in range(NUM_TRIALS):
        lengths, logits = draw_prompts(rng, num_prompts, "unequal")
        own = rng.normal(size=num_prompts) * 0.2  # the two drafters are not good at quite the same prompts
        before, after = walk_prompts(rng, lengths, logits), walk_prompts(rng, lengths, logits + own + shift)
        found = difference_interval(ratios(before), ratios(after), seed=trial)
        better += found.low > 0
        worse += found.high < 0
        detectable.append(minimum_detectable_difference(found))
    print(f"{num_prompts} prompts, shift {shift}: {better / NUM_TRIALS} better, {worse / NUM_TRIALS} worse")
    return better / NUM_TRIALS, worse / NUM_TRIALS, float(np.mean(detectable))


@pytest.mark.parametrize("num_prompts", [10, 50])
def test_comparisons_keep_quiet_where_nothing_is_different(num_prompts: int) -> None:
    better, worse, _ = simulate_comparisons(num_prompts, 0.0)
    # Spread of the second drafter alone moves its tau a little (p enters tau convexly), hence not exactly 0.05.
    assert better + worse <= 0.05 + 0.02 + NOISE


def test_comparisons_find_a_difference_that_is_there() -> None:
    better, worse, _ = simulate_comparisons(50, 0.4)
    assert better > 0.95
    assert worse == 0.0


def test_the_detectable_difference_is_found_about_four_times_in_five() -> None:
    shift = 0.2
    better, _, detectable = simulate_comparisons(50, shift)
    rng = np.random.default_rng(7)
    lengths, logits = draw_prompts(rng, 100_000, "unequal")
    totals = np.zeros((2, 2))
    for part in range(0, 100_000, 2000):
        at = slice(part, part + 2000)
        own = rng.normal(size=2000) * 0.2
        totals[0] += walk_prompts(rng, lengths[at], logits[at]).sum(axis=0)
        totals[1] += walk_prompts(rng, lengths[at], logits[at] + own + shift).sum(axis=0)
    effect = float(totals[1, 0] / totals[1, 1] - totals[0, 0] / totals[0, 1])
    # Power as a normal approximation predicts it for this effect, from the detectable difference alone: at the
    # detectable difference itself (2.84 standard errors) it is 0.8. The bootstrap's wider critical value costs some.
    standard_errors = effect / (detectable / 2.84)
    predicted = float((rng.normal(size=200_000) + standard_errors > 1.96).mean())
    print(f"effect {effect:.3f}, detectable {detectable:.3f}, predicted {predicted:.3f}, found {better:.3f}")
    assert abs(better - predicted) < 0.1
