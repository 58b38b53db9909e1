from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from tauscope_client.metrics.estimates import bounds_of, intervals_of
from tauscope_client.metrics.intervals import ratio_interval
from tauscope_client.metrics.prompts import PromptResult, Ratio, measure
from tauscope_client.metrics.strata import by_answer_position, by_context_length, by_tag
from tauscope_client.metrics.summary import pool
from tauscope_client.metrics.trace import Trace

Make = Callable[..., Trace]


@pytest.fixture
def prompts(make_random_trace: Make) -> list[PromptResult]:
    results = [measure(make_random_trace(seed, num_drafts=3, top_k=2)) for seed in range(40)]
    languages = ("en", "de", None)
    return [
        replace(result, tags={} if languages[i % 3] is None else {"language": languages[i % 3]})
        for i, result in enumerate(results)
    ]


def test_strata_of_a_tag_are_pools_of_its_prompts_untagged_last(prompts: list[PromptResult]) -> None:
    strata = by_tag(prompts, "language")
    assert [stratum.label for stratum in strata] == ["de", "en", "(untagged)"]
    for stratum in strata:
        members = [p for p in prompts if p.tags.get("language", "(untagged)") == stratum.label]
        assert stratum.interval.estimate == pool(members).values["tau"]
        assert stratum.num_counted == sum(p.walk.num_rounds for p in members)
        assert stratum.interval.low <= stratum.interval.estimate <= stratum.interval.high


def test_a_stratum_with_a_prompt_that_lacks_the_statistic_has_no_estimate(prompts: list[PromptResult]) -> None:
    english = next(i for i, p in enumerate(prompts) if p.tags.get("language") == "en" and not p.is_empty)
    ratios = {name: ratio for name, ratio in prompts[english].ratios.items() if name != "topk_streak_2"}
    prompts[english] = replace(prompts[english], ratios=ratios)
    found = {s.label: s.interval.estimate for s in by_tag(prompts, "language", statistic="topk_streak_2")}
    assert found["en"] is None
    assert found["de"] is not None


@pytest.mark.parametrize("by", [by_context_length, by_answer_position])
def test_buckets_hold_every_round_once(prompts: list[PromptResult], by: Callable) -> None:
    edges = (0, 4, 8, 16)
    strata = by(prompts, edges)
    assert sum(s.num_counted for s in strata) == sum(p.walk.num_rounds for p in prompts)
    for stratum in strata:
        low = int(stratum.label.rstrip("+").split("-")[0])
        high = inf if stratum.label.endswith("+") else int(stratum.label.split("-")[1])
        inside = [
            emitted
            for p in prompts
            for anchor, emitted in zip(p.walk.anchors, p.walk.emitted, strict=True)
            if low <= (anchor if by is by_context_length else anchor - p.prompt_tokens) < high
        ]
        assert stratum.interval.estimate == pytest.approx(sum(inside) / len(inside), rel=1e-12)


def test_edges_that_do_not_start_at_zero_or_do_not_ascend_are_refused(prompts: list[PromptResult]) -> None:
    for edges in ((), (1, 2), (0, 5, 5), (0, 7, 3)):
        with pytest.raises(ValueError, match="ascending"):
            by_context_length(prompts, edges)


def test_intervals_by_name_are_those_of_the_ratios_and_respect_the_bounds(prompts: list[PromptResult]) -> None:
    found = intervals_of(prompts, ("tau", "accept_rate", "tau_prompt_mean", "topk_streak_4"))
    assert found["tau"].estimate == pool(prompts).values["tau"]
    assert found["tau"] == ratio_interval([p.ratios["tau"] for p in prompts], bounds=(1.0, inf))
    assert found["tau_prompt_mean"].estimate == pytest.approx(pool(prompts).values["tau_prompt_mean"])
    assert found["topk_streak_4"].estimate is None  # two candidates a row were kept
    assert 0 <= found["accept_rate"].low <= found["accept_rate"].high <= 1
    assert found["tau"].low >= 1


def test_bounds_follow_the_name() -> None:
    assert bounds_of("tau_unclipped") == bounds_of("ddtree_tau_16") == bounds_of("topk_walk_tau_4") == (1.0, inf)
    assert bounds_of("agreement") == bounds_of("accept_rate") == (0.0, 1.0)
    assert bounds_of("topk_streak_4") == (0.0, inf)


def test_a_stratum_is_plain_data(prompts: list[PromptResult]) -> None:
    plain = by_tag(prompts, "language")[0].to_dict()
    assert plain["label"] == "de"
    assert set(plain) >= {"estimate", "low", "high", "warning", "num_counted"}
    assert Ratio(1, 2).value == 0.5
