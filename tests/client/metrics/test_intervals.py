import json
from math import inf
from random import Random
from statistics import fmean

import numpy as np
import pytest

from tauscope_client.metrics.intervals import (
    FEW_PROMPTS,
    NUM_RESAMPLES,
    difference_interval,
    minimum_detectable_difference,
    ratio_interval,
)
from tauscope_client.metrics.prompts import Ratio
from tauscope_client.metrics.student import t_quantile


def some_ratios(seed: int, num_prompts: int) -> list[Ratio]:
    random = Random(seed)
    rounds = [random.randint(5, 60) for _ in range(num_prompts)]
    return [Ratio(round(n * random.uniform(1.5, 6)), n) for n in rounds]


def pooled(ratios: list[Ratio]) -> float:
    return sum(ratio.numerator for ratio in ratios) / sum(ratio.denominator for ratio in ratios)


def slow_jackknife(units: list, statistic) -> tuple[float, float]:
    parts = [statistic(units[:i] + units[i + 1 :]) for i in range(len(units))]
    mean = fmean(parts)
    return statistic(units), ((len(units) - 1) / len(units) * sum((part - mean) ** 2 for part in parts)) ** 0.5


def slow_interval(units: list, statistic, *, seed: int) -> tuple[float, float]:
    """The symmetric studentised bootstrap, one resample at a time, with the generator's own draws."""
    centre, error = slow_jackknife(units, statistic)
    draws = np.random.default_rng(seed).integers(0, len(units), size=(NUM_RESAMPLES, len(units)))
    distances = []
    for draw in draws.tolist():
        if len(set(draw)) > 1:
            other, spread = slow_jackknife([units[i] for i in draw], statistic)
            distances.append(abs(other - centre) / spread)
    student = t_quantile(0.975, len(units) - 1)
    critical = min(max(float(np.quantile(distances, 0.95)), student), 2 * student)
    return centre - critical * error, centre + critical * error


@pytest.mark.parametrize(
    ("probability", "dof", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 9, 2.26216),
        (0.95, 4, 2.13185),
        (0.8, 9, 0.883404),
        (0.975, 99, 1.98422),
        (0.995, 30, 2.75),
    ],
)
def test_t_quantiles_are_those_of_the_printed_tables(probability: float, dof: int, expected: float) -> None:
    # Tables give six figures.
    assert t_quantile(probability, dof) == pytest.approx(expected, rel=1e-5)
    assert t_quantile(1 - probability, dof) == pytest.approx(-expected, rel=1e-5)


def test_t_quantile_refuses_what_has_no_quantile() -> None:
    for probability, dof in ((0.0, 3), (1.0, 3), (0.5, 0)):
        with pytest.raises(ValueError, match="t_quantile"):
            t_quantile(probability, dof)


@pytest.mark.parametrize("num_prompts", [3, 12])
def test_interval_equals_a_bootstrap_written_as_a_loop(num_prompts: int) -> None:
    ratios = some_ratios(1, num_prompts)
    low, high = slow_interval(ratios, lambda units: np.log(pooled(units)), seed=5)
    found = ratio_interval(ratios, seed=5)
    assert found.estimate == pytest.approx(pooled(ratios), rel=1e-12)
    # Sums in another order: a few ulp, magnified by quantiles of near-degenerate resamples.
    assert (found.low, found.high) == (pytest.approx(np.exp(low), rel=1e-6), pytest.approx(np.exp(high), rel=1e-6))


def test_a_handful_of_prompts_with_an_odd_one_is_held_to_twice_student() -> None:
    ratios = [Ratio(20, 10), Ratio(21, 10), Ratio(22, 10), Ratio(80, 10)]
    centre, error = slow_jackknife(ratios, lambda units: np.log(pooled(units)))
    found = ratio_interval(ratios)
    assert found.high == pytest.approx(np.exp(centre + 2 * t_quantile(0.975, 3) * error), rel=1e-9)
    low, high = slow_interval(ratios, lambda units: np.log(pooled(units)), seed=0)
    assert (np.log(found.low), np.log(found.high)) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_difference_interval_equals_a_paired_bootstrap_written_as_a_loop() -> None:
    before, after = some_ratios(2, 9), some_ratios(3, 9)
    pairs = list(zip(before, after, strict=True))
    low, high = slow_interval(
        pairs, lambda units: pooled([b for _, b in units]) - pooled([a for a, _ in units]), seed=7
    )
    found = difference_interval(before, after, seed=7)
    assert found.estimate == pytest.approx(pooled(after) - pooled(before), rel=1e-12)
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-6), pytest.approx(high, rel=1e-6))


def test_the_seed_decides_and_nothing_else_does() -> None:
    ratios = some_ratios(4, 15)
    assert ratio_interval(ratios, seed=1) == ratio_interval(ratios, seed=1)
    assert ratio_interval(ratios, seed=1) != ratio_interval(ratios, seed=2)


def test_swapping_the_two_sides_mirrors_the_difference() -> None:
    before, after = some_ratios(5, 12), some_ratios(6, 12)
    there, back = difference_interval(before, after), difference_interval(after, before)
    assert (back.low, back.high) == (pytest.approx(-there.high), pytest.approx(-there.low))


def test_equal_sides_differ_by_exactly_nothing() -> None:
    ratios = some_ratios(7, 12)
    found = difference_interval(ratios, ratios)
    assert (found.estimate, found.low, found.high) == (0.0, 0.0, 0.0)
    assert not found.excludes_zero


def test_prompts_without_rounds_have_no_say() -> None:
    ratios = some_ratios(8, 12)
    assert ratio_interval([*ratios, Ratio(0, 0)]) == ratio_interval(ratios)
    assert difference_interval([*ratios, Ratio(0, 0)], [*ratios, Ratio(0, 0)]) == difference_interval(ratios, ratios)


def test_few_prompts_warn_one_has_no_interval_and_none_has_no_estimate() -> None:
    assert ratio_interval(some_ratios(1, FEW_PROMPTS)).warning is None
    assert "only 19 prompts" in (ratio_interval(some_ratios(1, FEW_PROMPTS - 1)).warning or "")
    one = ratio_interval([Ratio(7, 2)])
    assert (one.estimate, one.low, one.high) == (3.5, None, None)
    assert "no interval" in (one.warning or "")
    assert ratio_interval([]).estimate is None
    assert difference_interval([Ratio(7, 2)], [Ratio(9, 2)]).low is None
    assert difference_interval([], []).estimate is None


def test_a_statistic_that_is_zero_everywhere_or_in_all_but_one_prompt_stays_finite() -> None:
    assert ratio_interval([Ratio(0, 5)] * 4)[:3] == (0.0, 0.0, 0.0)
    lonely = ratio_interval([Ratio(0, 5)] * 9 + [Ratio(5, 5)], bounds=(0.0, 1.0))
    assert lonely.low == 0.0
    assert 0.1 < lonely.high <= 1.0


def test_bounds_cut_the_ends() -> None:
    shares = [Ratio(n, 10) for n in (10, 10, 9, 10, 2)]
    assert ratio_interval(shares, bounds=(0.0, inf)).high > 1.0
    assert ratio_interval(shares, bounds=(0.0, 1.0)).high == 1.0


def test_an_interval_is_plain_json() -> None:
    for found in (ratio_interval([]), ratio_interval(some_ratios(1, 5))):
        plain = found.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_sides_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 prompts before, 1 after"):
        difference_interval([Ratio(1, 1)] * 2, [Ratio(1, 1)])


def test_the_detectable_difference_is_two_quantiles_of_standard_error_and_shrinks_with_prompts() -> None:
    before, after = some_ratios(9, 10), some_ratios(10, 10)
    found = difference_interval(before, after)
    assert minimum_detectable_difference(found) == pytest.approx((2.26216 + 0.883404) * found.standard_error, rel=1e-5)
    more = difference_interval(before * 4, after * 4)
    assert minimum_detectable_difference(more) < minimum_detectable_difference(found) / 1.9
    assert minimum_detectable_difference(ratio_interval([])) is None


def test_many_prompts_are_resampled_in_parts() -> None:
    # Six thousand numbers a resample: four hundred of them do not fit into one part.
    ratios = [Ratio(float(3 + i % 5), 1.0) for i in range(3000)]
    found = ratio_interval(ratios, num_resamples=400)
    assert found.estimate == 5.0
    expected = 1.96 * np.std([ratio.numerator for ratio in ratios]) / 3000**0.5
    # Four hundred resamples know the critical value to a few percent.
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.1)
