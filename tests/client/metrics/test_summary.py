import json
from collections.abc import Callable
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_client.metrics.definitions import DEFINITIONS, TOP_KS, TREE_BUDGETS
from tauscope_client.metrics.expectations import EXPECTATIONS
from tauscope_client.metrics.summary import summarise
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.walk import walk

Make = Callable[..., Trace]
HIT, MISS = 0, 99


def test_golden_example_pooled_mean_of_means_and_accept_rate(golden_traces: list[Trace]) -> None:
    summary = summarise(golden_traces)
    assert [prompt.walk.accepted for prompt in summary.prompts] == [(3, 0, 1), (2,)]
    assert [prompt.walk.emitted for prompt in summary.prompts] == [(4, 1, 2), (3,)]
    assert summary.values["tau"] == 2.5
    assert summary.values["tau_prompt_mean"] == pytest.approx((7 / 3 + 3) / 2, abs=1e-15)
    assert summary.values["tau_unclipped"] == summary.values["tau_stop_clipped"] == 2.5
    assert summary.values["accept_rate"] == 0.5
    assert summary.counts["num_rounds"] == 4


def test_golden_example_curves_and_histograms(golden_traces: list[Trace]) -> None:
    summary = summarise(golden_traces)
    assert summary.curves["prefix_rate_walk"] == (3 / 4, 2 / 4, 1 / 4)
    assert summary.curves["conditional_rate_walk"] == (3 / 4, 2 / 3, 1 / 2)
    assert summary.histograms["accepted_histogram"] == (1, 1, 1, 1)
    assert summary.histograms["emitted_histogram"] == (0, 1, 1, 1, 1)
    assert summary.histograms["emitted_shares"] == (0, 0.25, 0.25, 0.25, 0.25)


def test_golden_example_in_the_words_of_other_programs(golden_traces: list[Trace]) -> None:
    values = summarise(golden_traces).values
    assert values["sglang_accept_length_pooled"] == 3.0
    assert values["sglang_accept_length_mean"] == pytest.approx(10 / 3, abs=1e-15)
    assert values["sglang_accept_rate_mean"] == pytest.approx((4 / 9 + 2 / 3) / 2, abs=1e-15)
    assert values["vllm_acceptance_length"] == values["vllm_acceptance_length_clipped"] == 2.5
    assert values["vllm_draft_acceptance_rate"] == 0.5
    assert values["zlab_acceptance_length_april"] == values["zlab_acceptance_length"] == pytest.approx(8 / 3)
    assert values["deepspec_acceptance_length"] == 2.5
    assert values["deepspec_verify_rate"] == 10 / 16


def test_golden_example_with_a_drafted_stop_as_second_accepted_token(make_trace: Make) -> None:
    second = make_trace(
        {0: (HIT, HIT, MISS)}, (20, 21, 22), num_drafts=3, prompt_id="R2", stop_ids={22}, tail_ids=(23, 24)
    )
    values = summarise([second]).values
    assert values["zlab_acceptance_length"] == values["deepspec_acceptance_length"] == values["tau"] == 2.0
    assert values["zlab_acceptance_length_april"] == values["vllm_acceptance_length"] == values["tau_unclipped"] == 3.0


def test_unclipped_numbers_are_null_when_one_reference_does_not_run_on(
    make_trace: Make, golden_traces: list[Trace]
) -> None:
    blind = make_trace({0: (HIT, HIT, HIT)}, (20, 21, 22), num_drafts=3, prompt_id="blind", stop_ids={22})
    values = summarise([*golden_traces, blind]).values
    for name in (
        "tau_unclipped",
        "vllm_acceptance_length",
        "vllm_draft_acceptance_rate",
        "zlab_acceptance_length_april",
    ):
        assert values[name] is None
    assert values["tau_stop_clipped"] == 12 / 5
    assert values["vllm_acceptance_length_clipped"] == (6 + 2 + 5) / 5


def test_a_text_cut_by_length_leaves_deepspec_null_without_a_tail(make_trace: Make) -> None:
    cut = make_trace({0: (HIT, HIT, HIT)}, (20, 21, 22), num_drafts=3, stop_ids={9}, max_response_tokens=3)
    values = summarise([cut]).values
    assert values["deepspec_acceptance_length"] is None
    assert values["deepspec_verify_rate"] is None
    assert values["tau"] == 2.0


def test_empty_responses_are_counted_apart_and_change_no_rate(make_trace: Make, golden_traces: list[Trace]) -> None:
    empty = [
        make_trace({}, (7, 1, 2), num_drafts=3, prompt_id="stop first", stop_ids={7}),
        make_trace({}, (1,), num_drafts=3, prompt_id="one token"),
        make_trace({}, (), num_drafts=3, prompt_id="nothing"),
    ]
    with_empty, without = summarise([*golden_traces, *empty]), summarise(golden_traces)
    assert with_empty.values == without.values
    assert with_empty.curves == without.curves
    assert with_empty.counts["num_empty"] == 3
    assert with_empty.counts["num_prompts"] == 5


def test_only_empty_responses_and_no_prompts_at_all_give_nulls(make_trace: Make) -> None:
    for traces in ([], [make_trace({}, (7,), num_drafts=3, stop_ids={7})]):
        summary = summarise(traces)
        assert set(summary.values.values()) == {None}
        json.dumps(summary.to_dict(), allow_nan=False)


def test_every_name_has_a_definition_and_the_dictionary_is_plain_json(
    golden_traces: list[Trace], make_random_trace: Make
) -> None:
    randoms = [make_random_trace(seed, num_drafts=3, top_k=3) for seed in range(20)]
    for traces in (golden_traces, randoms):
        plain = summarise(traces).to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        for part in ("values", "curves", "histograms", "counts"):
            assert all(plain["definitions"][name] == DEFINITIONS[name] for name in plain[part])
        assert [len(prompt["accepted"]) for prompt in plain["prompts"]] == [walk(trace).num_rounds for trace in traces]


def test_definitions_have_one_line_and_no_name_is_defined_for_nothing(golden_traces: list[Trace]) -> None:
    plain = summarise(golden_traces).to_dict()
    trees = {f"ddtree_tau_{budget}" for budget in TREE_BUDGETS}  # added by trees.add_trees
    estimates = {*EXPECTATIONS, "speed_up_estimate"}  # made elsewhere
    assert set(DEFINITIONS) == set(plain["definitions"]) | trees | estimates
    assert all(text and "\n" not in text and "{" not in text for text in DEFINITIONS.values())


def test_a_prompt_that_comes_twice_is_refused(golden_traces: list[Trace]) -> None:
    with pytest.raises(ValueError, match="'R1' comes twice"):
        summarise([golden_traces[0], golden_traces[0]])


def test_agreement_is_over_the_text_and_over_prompts_that_have_it(make_trace: Make, golden_traces: list[Trace]) -> None:
    trace = make_trace({}, (1, 2, 3, 7, 5), num_drafts=1, stop_ids={7}, target_argmax=[1, 2, 4, 7, 6])
    summary = summarise([trace, *golden_traces])
    assert summary.values["agreement"] == 3 / 4
    assert summary.counts["num_prompts_with_argmax"] == 1
    assert summarise(golden_traces).values["agreement"] is None


def test_k_above_the_kept_candidates_is_null(make_trace: Make) -> None:
    values = summarise([make_trace({0: (1,)}, (1, 2, 7), num_drafts=1, top_k=4, stop_ids={7})]).values
    assert values["topk_walk_tau_4"] == 2.0
    assert values["topk_streak_4"] == 0.5
    assert values["topk_walk_tau_8"] is None
    assert values["topk_streak_8"] is None


def test_blocks_of_different_length_pool(make_trace: Make) -> None:
    short = make_trace({0: (HIT,)}, (1, 2, 3, 7), num_drafts=1, prompt_id="short", stop_ids={7})
    long = make_trace({0: (HIT, HIT, MISS)}, (1, 2, 3, 7), num_drafts=3, prompt_id="long", stop_ids={7})
    summary = summarise([short, long])
    assert summary.values["tau"] == (2 + 1 + 3) / 3
    assert summary.curves["prefix_rate_walk"] == (2 / 3, 1 / 3, 0.0)
    assert summary.curves["prefix_rate_proposed_walk"] == (2 / 3, 1.0, 0.0)
    assert summary.curves["tau_by_width"] == (6 / 4, 6 / 3, 6 / 3)


def test_rounds_shortened_by_the_limit_stay_in_the_prefix_rate_and_leave_the_proposed_one(make_trace: Make) -> None:
    trace = make_trace({0: (MISS, HIT), 1: (HIT, HIT)}, (1, 2, 3), num_drafts=2, max_response_tokens=3)
    curves = summarise([trace]).curves
    assert curves["prefix_rate_walk"] == (0.5, 0.0)
    assert curves["prefix_rate_proposed_walk"] == (0.5, 0.0)
    assert curves["teacher_forced_accuracy_walk"] == (0.5, 1.0)


@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6, unique=True), num_drafts=st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_aggregates_equal_sums_over_rounds_and_anchors(
    make_random_trace: Make, seeds: list[int], num_drafts: int
) -> None:
    traces = [make_random_trace(seed, num_drafts=num_drafts, top_k=4) for seed in seeds]
    summary = summarise(traces)
    emitted, accepted, means, all_emitted, streak = [], [], [], [], {k: [] for k in TOP_KS[:3]}
    right, labelled = [0] * num_drafts, [0] * num_drafts
    for trace in traces:
        rounds = walk(trace)
        emitted += rounds.emitted
        accepted += rounds.accepted
        means += [fmean(rounds.emitted)] if rounds.emitted else []
        text = trace.token_ids[: trace.response_start + trace.num_response_tokens].tolist()
        for row, anchor in enumerate(trace.anchors.tolist()):
            labels = text[anchor + 1 : anchor + 1 + num_drafts]
            if not labels:
                continue
            for k, lengths in streak.items():
                lengths.append(0)
                while lengths[-1] < len(labels) and labels[lengths[-1]] in trace.top_ids[row, lengths[-1], :k]:
                    lengths[-1] += 1
            all_emitted.append(min(streak[1][-1] + 1, len(text) - 1 - anchor))
            for column, label in enumerate(labels):
                labelled[column] += 1
                right[column] += int(trace.draft_ids[row, column] == label)
    if not emitted:
        assert summary.values["tau"] is None
        return
    assert summary.values["tau"] == pytest.approx(fmean(emitted), abs=1e-12)
    assert summary.values["tau_prompt_mean"] == pytest.approx(fmean(means), abs=1e-12)
    assert summary.values["tau_all_anchors"] == pytest.approx(fmean(all_emitted), abs=1e-12)
    for k, lengths in streak.items():
        assert summary.values[f"topk_streak_{k}"] == pytest.approx(fmean(lengths), abs=1e-12)
    for column in range(num_drafts):
        expected = right[column] / labelled[column] if labelled[column] else None
        assert summary.curves["teacher_forced_accuracy_all"][column] == pytest.approx(expected, abs=1e-12)
        reached = sum(a > column for a in accepted) / len(accepted)
        assert summary.curves["prefix_rate_walk"][column] == pytest.approx(reached, abs=1e-12)


@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6, unique=True), num_drafts=st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_top_k_numbers_are_ordered_and_unclipped_tau_is_one_plus_the_prefix_rates(
    make_random_trace: Make, seeds: list[int], num_drafts: int
) -> None:
    summary = summarise([make_random_trace(seed, num_drafts=num_drafts, top_k=4) for seed in seeds])
    values, curves = summary.values, summary.curves
    if values["tau"] is None:
        return
    assert values["topk_walk_tau_1"] == values["tau"]
    assert values["topk_streak_1"] <= values["topk_streak_2"] <= values["topk_streak_4"]
    assert curves["tau_by_width"][-1] == values["tau"]
    assert values["tau"] <= values["vllm_acceptance_length_clipped"]
    assert values["tau_unclipped"] is None or values["tau"] <= values["tau_unclipped"]
    if all(e == a + 1 for p in summary.prompts for a, e in zip(p.walk.accepted, p.walk.emitted, strict=True)):
        assert values["tau"] == pytest.approx(1 + sum(curves["prefix_rate_walk"]), abs=1e-12)
    product = 1.0
    for rate, conditional in zip(curves["prefix_rate_walk"], curves["conditional_rate_walk"], strict=True):
        product *= conditional or 0.0
        assert rate == pytest.approx(product, abs=1e-12)


def test_all_anchors_and_walk_are_different_populations(make_trace: Make) -> None:
    places = {0: (HIT, HIT, HIT), 1: (MISS,) * 3, 2: (MISS,) * 3, 3: (MISS,) * 3}
    summary = summarise([make_trace(places, (1, 2, 3, 4, 7), num_drafts=3, stop_ids={7})])
    assert summary.values["tau"] == 4.0
    assert summary.values["tau_all_anchors"] == (4 + 1 + 1 + 1) / 4
