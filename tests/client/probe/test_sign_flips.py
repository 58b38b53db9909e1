"""Sign flips against every pattern written out, and how often they accuse the innocent."""

from itertools import product

import numpy as np
import pytest

from tauscope_client.probe.sign_flips import judge_differences


def example(n, m, *, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0.3, 1.0, size=(m, n)).round(2), rng.integers(5, 40, size=n).astype(float)


def p_values_by_hand(sums):
    """Own p-values of every pattern: share of patterns with at least its sum."""
    patterns = list(product((1, -1), repeat=sums.shape[1]))
    totals = [[sum(s * d for s, d in zip(pattern, row, strict=True)) for row in sums] for pattern in patterns]
    return [
        [sum(other[c] >= total[c] - 1e-9 for other in totals) / len(totals) for c in range(len(sums))]
        for total in totals
    ]


def test_p_values_are_shares_of_all_patterns_written_out():
    sums, weights = example(7, 4)
    every = p_values_by_hand(sums)
    found = judge_differences(sums, weights)
    assert found.p_values == pytest.approx(every[0])  # product gives the pattern without flips first
    joint = [sum(min(row) <= own + 1e-9 for row in every) / len(every) for own in every[0]]
    assert found.joint_p_values == pytest.approx(joint)


def test_joint_p_values_are_never_smaller_than_own_ones_nor_larger_than_bonferroni_allows():
    sums, weights = example(10, 6, seed=3)
    found = judge_differences(sums, weights)
    assert (found.joint_p_values >= found.p_values).all()
    assert (found.joint_p_values <= np.minimum(1, 6 * found.p_values) + 1e-9).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_holds_exactly_the_shifts_that_are_not_rejected(seed):
    sums, weights = example(8, 1, seed=seed)
    found = judge_differences(sums, weights)
    low, high = found.low[0], found.high[0]

    def p_at(shift, sign):
        return p_values_by_hand(sign * (sums - shift * weights))[0][0]

    step = 1e-6
    assert p_at(low - step, 1) <= 0.025 < p_at(low + step, 1)
    assert p_at(high + step, -1) <= 0.025 < p_at(high - step, -1)
    assert low < sums.sum() / weights.sum() < high


def test_too_few_conversations_have_no_interval_and_cannot_convict():
    unanimous = np.full((1, 5), 3.0)
    found = judge_differences(unanimous, np.ones(5))
    assert not np.isfinite([found.low, found.high]).any()
    assert found.p_values[0] == 1 / 32
    six = judge_differences(np.full((1, 6), 3.0), np.ones(6))
    assert (six.low[0], six.high[0]) == (3.0, 3.0)


def test_drawn_patterns_agree_with_all_of_them():
    sums, weights = example(14, 3, seed=5)
    drawn = judge_differences(sums, weights)
    patterns = 1 - 2 * ((np.arange(1 << 14)[:, None] >> np.arange(14)) & 1)
    exact = (patterns @ sums.T >= sums.sum(axis=1) - 1e-9).mean(axis=0)
    # 9999 draws: a standard error of at most 0.005
    np.testing.assert_allclose(drawn.p_values, exact, atol=0.02)
    again = judge_differences(sums, weights)
    assert all(np.array_equal(a, b) for a, b in zip(again, drawn, strict=True))


@pytest.mark.parametrize("n", [8, 20])
def test_among_twenty_innocent_conditions_one_is_accused_in_one_probe_of_twenty_at_most(n):
    """Differences symmetric about zero, heavy-tailed, unequal between conversations, correlated between conditions."""
    rng = np.random.default_rng(1)
    num_probes, accused = 200, 0
    for probe in range(num_probes):
        scale = rng.lognormal(0, 1, size=n)
        common = rng.standard_t(3, size=n)
        sums = scale * (0.5 * common + rng.standard_t(3, size=(20, n)))
        sums[15:] -= 4 * scale  # and some that are truly worse
        found = judge_differences(sums, np.ones(n), seed=probe, num_drawn=499)
        accused += bool((found.joint_p_values <= 0.05).any())
    # 5 % of 200 is 10; 19 is three standard deviations more
    assert accused <= 19


def test_intervals_cover_the_truth():
    rng = np.random.default_rng(2)
    covered = 0
    num_trials = 400
    for _ in range(num_trials):
        weights = rng.integers(10, 100, size=10).astype(float)
        sums = weights * (1.5 + rng.lognormal(0, 1, size=10) * rng.standard_t(4, size=10))
        found = judge_differences(sums[None], weights)
        covered += bool(found.low[0] <= 1.5 <= found.high[0])
    # nominal 95 %: 380 of 400, standard deviation 4.4
    assert covered >= 366
