"""Expectations along one text equal slow loops over anchors and positions."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_client.metrics.expectations import EXPECTATIONS, expected_ratios, weighted_rounds
from tauscope_client.metrics.ranks import label_ranks
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.walk import walk

Make = Callable[..., Trace]


def by_hand(trace: Trace, rates: np.ndarray) -> tuple[float, int, float, int]:
    """Sum of emitted and of acceptances over the anchors and positions within the text."""
    emitted, num_anchors, acceptance, num_positions = 0.0, 0, 0.0, 0
    for row, anchor in enumerate(trace.anchors.tolist()):
        left = trace.num_response_tokens - 1 - (anchor - trace.response_start)
        if left < 1:
            continue
        num_anchors += 1
        reach, total = 1.0, 1.0
        for column in range(min(left, trace.num_drafts)):
            reach *= rates[row, column]
            total += reach
            acceptance += rates[row, column]
            num_positions += 1
        emitted += total
    return emitted, num_anchors, acceptance, num_positions


@given(seed=st.integers(0, 2**32 - 1), num_drafts=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_expectations_equal_loops_over_the_text(make_random_trace: Make, seed: int, num_drafts: int) -> None:
    trace = make_random_trace(seed, num_drafts=num_drafts, top_k=2)
    rng = np.random.default_rng(seed)
    alphas = {how: rng.random(trace.draft_ids.shape) for how in ("sampled", "greedy")}
    found = expected_ratios(trace, alphas)
    assert set(found) == set(EXPECTATIONS)
    for how, rates in alphas.items():
        emitted, num_anchors, acceptance, num_positions = by_hand(trace, rates)
        assert found[f"expected_emitted_{how}"] == (pytest.approx(emitted), num_anchors)
        assert found[f"expected_acceptance_{how}"] == (pytest.approx(acceptance), num_positions)


@given(seed=st.integers(0, 2**32 - 1), num_drafts=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_weighted_rounds_cover_the_text_and_with_certain_drafts_are_the_walk(
    make_random_trace: Make, seed: int, num_drafts: int
) -> None:
    trace = make_random_trace(seed, num_drafts=num_drafts, top_k=2)
    rates = np.random.default_rng(seed).random(trace.draft_ids.shape)
    found = weighted_rounds(trace, rates)
    tokens, rounds = expected_ratios(trace, {"sampled": rates})["expected_tau_sampled"]
    assert sum(chance for _, chance, _ in found) == pytest.approx(rounds)
    assert sum(chance * emitted for _, chance, emitted in found) == pytest.approx(tokens)
    certain = weighted_rounds(trace, (label_ranks(trace).ranks == 0).astype(float))
    visited = [(anchor, emitted) for anchor, chance, emitted in certain if chance]
    assert visited == list(zip(walk(trace).anchors, walk(trace).emitted, strict=True))


def test_the_mean_of_simulated_rounds_is_what_weighted_rounds_say(make_random_trace: Make) -> None:
    trace = make_random_trace(7, num_drafts=3, top_k=2)
    rng = np.random.default_rng(7)
    rates, steps, num_walks = rng.random(trace.draft_ids.shape), trace.num_response_tokens - 1, 20_000
    counts = np.zeros(steps)
    for _ in range(num_walks):
        at = 0
        while at < steps:
            counts[at] += 1
            accepted = 0
            while accepted < 3 and rng.random() < rates[at, accepted]:
                accepted += 1
            at += accepted + 1
    chances = [chance for _, chance, _ in weighted_rounds(trace, rates)]
    # A share of 20,000 walks has a standard error of at most 0.0036; five of them.
    assert counts / num_walks == pytest.approx(chances, abs=0.018)
