import json
from collections.abc import Callable

import pytest

from tauscope_client.metrics.compare import compare
from tauscope_client.metrics.prompts import PromptResult, measure
from tauscope_client.metrics.trace import Trace

Make = Callable[..., Trace]
RESPONSE = (*range(1, 16), 99)


def results(make_trace: Make, lengths: list[int], *, response: tuple[int, ...] = RESPONSE) -> list[PromptResult]:
    """Prompt i is drafted by a drafter that gets `lengths[i]` tokens right everywhere."""
    out = []
    for number, length in enumerate(lengths):
        places = {index: [0] * length + [9] * (4 - length) for index in range(len(response) - 1)}
        out.append(measure(make_trace(places, response, num_drafts=4, prompt_id=f"p{number}", stop_ids={99})))
    return out


def test_wins_ties_and_difference_are_counted_by_prompt(make_trace: Make) -> None:
    before = results(make_trace, [0, 1, 2, 3, 1, 2])
    after = results(make_trace, [1, 1, 3, 4, 0, 4])
    found = compare(before, after[::-1], statistics=("tau", "accept_rate"))
    tau = found["tau"]
    assert (tau.wins_before, tau.wins_after, tau.ties) == (1, 4, 1)
    assert tau.difference.estimate == pytest.approx(tau.after - tau.before)
    assert found["accept_rate"].wins_after == 4
    assert json.loads(json.dumps(tau.to_dict(), allow_nan=False)) == tau.to_dict()


def test_a_constant_advantage_is_found_and_named(make_trace: Make) -> None:
    before, after = results(make_trace, [0, 1, 2, 1, 0, 2, 1, 0]), results(make_trace, [1, 2, 3, 2, 1, 3, 2, 1])
    assert compare(before, after)["tau"].verdict == "the second is better"
    assert compare(after, before)["tau"].verdict == "the first is better"
    assert compare(before, before)["tau"].verdict == "no difference found"


def test_one_prompt_cannot_tell(make_trace: Make) -> None:
    found = compare(results(make_trace, [0]), results(make_trace, [3]))["tau"]
    assert found.verdict == "cannot tell: too few prompts"
    assert found.minimum_detectable is None


def test_different_prompts_or_texts_are_refused_unless_forced(make_trace: Make) -> None:
    before = results(make_trace, [0, 1, 2])
    with pytest.raises(ValueError, match=r"1 prompts have no partner \(the first is 'p2'\)"):
        compare(before, before[:2])
    assert compare(before, before[:2], is_forced=True)["tau"].difference.num_prompts == 2
    longer = results(make_trace, [0, 1, 2], response=(*range(1, 20), 99))
    with pytest.raises(ValueError, match=r"'p0'.*\(2, 16\).*\(2, 20\).*references differ"):
        compare(before, longer)
    with pytest.raises(ValueError, match="no prompt is shared"):
        compare(before, [])


def test_a_statistic_that_one_side_lacks_has_no_difference(make_trace: Make) -> None:
    before = results(make_trace, [0, 1])
    assert compare(before, before, statistics=("agreement",))["agreement"].difference.estimate is None
