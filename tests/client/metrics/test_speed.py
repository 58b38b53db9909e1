import json

import pytest

from tauscope_client.metrics.intervals import Interval
from tauscope_client.metrics.speed import estimate_speed


def test_the_estimate_is_tau_over_one_plus_the_ratio_of_costs() -> None:
    found = estimate_speed(4.5, draft_cost_ms=5.0, target_cost_ms=20.0)
    assert found.speed_up == pytest.approx(4.5 / (1 + 5 / 20))
    assert found.break_even_tau == 1.25


def test_a_dearer_verification_lowers_it() -> None:
    found = estimate_speed(4.5, draft_cost_ms=5.0, target_cost_ms=20.0, verify_cost_ms=30.0)
    assert found.speed_up == pytest.approx(4.5 * 20 / 35)


def test_an_interval_of_tau_gives_an_interval_of_speed() -> None:
    found = estimate_speed(Interval(4.0, 3.0, 6.0, 0.5, 0.95, 30), draft_cost_ms=10.0, target_cost_ms=10.0)
    assert (found.low, found.speed_up, found.high) == (1.5, 2.0, 3.0)


def test_it_says_that_it_is_an_estimate_and_stays_null_without_a_tau() -> None:
    plain = estimate_speed(None, draft_cost_ms=1.0, target_cost_ms=2.0).to_dict()
    assert plain["is_estimate"] is True
    assert plain["speed_up_estimate"] is None
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@pytest.mark.parametrize("costs", [(-1.0, 2.0, None), (1.0, 0.0, None), (1.0, 2.0, 0.0)])
def test_impossible_costs_are_refused(costs: tuple[float, float, float | None]) -> None:
    draft, target, verify = costs
    with pytest.raises(ValueError, match="draft_cost_ms="):
        estimate_speed(2.0, draft_cost_ms=draft, target_cost_ms=target, verify_cost_ms=verify)
