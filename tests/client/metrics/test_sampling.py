from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_client.metrics.ddtree import build_tree
from tauscope_client.metrics.ranks import label_ranks
from tauscope_client.metrics.sampling import (
    acceptance,
    distribution,
    equality_acceptance,
    expected_accepted,
    expected_walk,
    on_vocabulary,
    one_hot_acceptance,
    residual,
    tree_expected_accepted,
)
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.walk import walk

Make = Callable[..., Trace]
NUM_DRAWS = 200_000
# Shares of 200,000 draws have a standard error of at most 0.0011; five of them.
FIVE_SIGMA = 0.0056


def two_distributions(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(6, 0.7)), rng.dirichlet(np.full(6, 0.7))


def rejection_sample(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw from q, accept with chance min(1, p/q), else draw from what p has above q: accepted, tokens."""
    drafts = rng.choice(p.size, size=NUM_DRAWS, p=q)
    accepted = rng.random(NUM_DRAWS) * q[drafts] < p[drafts]
    rest = np.array([max(a - b, 0) for a, b in zip(p, q, strict=True)])
    others = rng.choice(p.size, size=NUM_DRAWS, p=rest / rest.sum())
    return accepted, np.where(accepted, drafts, others)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rejection_sampling_accepts_as_expected_and_gives_the_targets_distribution(seed: int) -> None:
    p, q = two_distributions(seed)
    accepted, tokens = rejection_sample(np.random.default_rng(seed), p, q)
    assert accepted.mean() == pytest.approx(float(acceptance(p, q)), abs=FIVE_SIGMA)
    assert np.bincount(tokens, minlength=6) / NUM_DRAWS == pytest.approx(p, abs=FIVE_SIGMA)
    rest = np.bincount(tokens[~accepted], minlength=6) / (~accepted).sum()
    assert rest == pytest.approx(residual(p, q), abs=5 * 0.5 / (~accepted).sum() ** 0.5)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_greedy_draft_is_accepted_with_the_targets_probability_of_it(seed: int) -> None:
    p, q = two_distributions(seed)
    best = int(q.argmax())
    drawn = np.random.default_rng(seed).choice(6, size=NUM_DRAWS, p=p)
    assert (drawn == best).mean() == pytest.approx(float(one_hot_acceptance(p, np.array(best))), abs=FIVE_SIGMA)
    assert acceptance(p, np.eye(6)[best]) == one_hot_acceptance(p, np.array(best))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_acceptance_is_one_minus_total_variation_and_equality_never_beats_it(seed: int) -> None:
    p, q = two_distributions(seed)
    assert acceptance(p, q) == pytest.approx(1 - 0.5 * np.abs(p - q).sum(), abs=1e-12)
    assert equality_acceptance(p, q) == pytest.approx(sum(a * b for a, b in zip(p, q, strict=True)), abs=1e-12)
    assert equality_acceptance(p, q) <= acceptance(p, q) + 1e-12


def test_nothing_left_to_sample_from_falls_back_to_the_target() -> None:
    p = np.array([0.25, 0.75])
    assert residual(p, p).tolist() == p.tolist()


def test_expected_accepted_is_the_mean_length_of_simulated_chains() -> None:
    alphas = np.array([0.9, 0.5, 0.8, 0.3])
    hits = np.random.default_rng(1).random((NUM_DRAWS, 4)) < alphas
    lengths = np.cumprod(hits, axis=1).sum(axis=1)
    # Lengths have a standard deviation below 1.5.
    assert lengths.mean() == pytest.approx(float(expected_accepted(alphas)), abs=5 * 1.5 / NUM_DRAWS**0.5)
    assert expected_accepted(np.ones((2, 3))).tolist() == [3.0, 3.0]
    assert expected_accepted(np.zeros((2, 3))).tolist() == [0.0, 0.0]


@given(seed=st.integers(0, 2**32 - 1), num_drafts=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_acceptances_of_zero_and_one_give_the_walk_itself(make_random_trace: Make, seed: int, num_drafts: int) -> None:
    trace = make_random_trace(seed, num_drafts=num_drafts, top_k=2)
    found = expected_walk(trace, (label_ranks(trace).ranks == 0).astype(float))
    assert found == (max(trace.num_response_tokens - 1, 0), walk(trace).num_rounds)


def test_the_expected_walk_is_the_mean_of_simulated_walks(make_trace: Make) -> None:
    trace = make_trace({}, range(1, 9), num_drafts=3)
    rng = np.random.default_rng(3)
    alphas = rng.random((7, 3))
    rounds = []
    for _ in range(20_000):
        at, count = 0, 0
        while at < 7:
            hits = rng.random(3) < alphas[at]
            at += int(np.cumprod(hits).sum()) + 1
            count += 1
        rounds.append(count)
    # The number of rounds varies by about 1.
    assert expected_walk(trace, alphas).denominator == pytest.approx(np.mean(rounds), abs=5 * 1.2 / 20_000**0.5)


def test_an_expected_walk_needs_every_anchor_and_matching_acceptances(make_trace: Make) -> None:
    trace = make_trace({}, range(1, 5), num_drafts=2)
    with pytest.raises(ValueError, match=r"alphas \[2, 2\] and 3 anchors: expected \[3, 2\]"):
        expected_walk(trace, np.zeros((2, 2)))


def test_a_tree_with_one_sample_a_node_is_as_deep_as_simulated() -> None:
    rng = np.random.default_rng(5)
    q = -np.sort(-rng.dirichlet(np.full(3, 1.0), size=2), axis=1)
    tree = build_tree(np.log(q), [[0, 1, 2]] * 2, budget=5, vocab_size=3)
    p = {(): rng.dirichlet(np.ones(3)), **{(t,): rng.dirichlet(np.ones(3)) for t in range(3)}}
    in_tree = {node.ranks for node in tree.nodes}
    exact = sum(
        p[()][a] * p[(a,)][b] * (((a,) in in_tree) + ((a, b) in in_tree)) for a, b in product(range(3), repeat=2)
    )
    node_p = np.array([p[node.ranks[:-1]][node.ranks[-1]] for node in tree.nodes])
    assert tree_expected_accepted([node.parent for node in tree.nodes], node_p) == pytest.approx(exact, abs=1e-12)


def test_temperature_top_k_and_top_p_keep_what_an_engine_keeps() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    assert distribution(logits, temperature=1.0) == pytest.approx([0.5, 0.3, 0.15, 0.05])
    assert distribution(logits, temperature=0.0).tolist() == [1, 0, 0, 0]
    assert distribution(logits, temperature=0.5) == pytest.approx(np.array([25, 9, 2.25, 0.25]) / 36.5)
    assert distribution(logits, temperature=1.0, top_k=2) == pytest.approx([5 / 8, 3 / 8, 0, 0])
    assert distribution(logits, temperature=1.0, top_p=0.6) == pytest.approx([5 / 8, 3 / 8, 0, 0])
    assert distribution(logits, temperature=1.0, top_p=0.4) == pytest.approx([1, 0, 0, 0])
    # Top-p sees the renormalised k best: 5/8 of them already reach 0.6.
    assert distribution(logits, temperature=1.0, top_k=2, top_p=0.6) == pytest.approx([1, 0, 0, 0])
    assert distribution(np.zeros(3), temperature=0.0).tolist() == [1, 0, 0]
    stacked = distribution(np.stack([logits, logits[::-1]]), temperature=1.0, top_p=0.6)
    assert stacked[1] == pytest.approx(stacked[0][::-1])


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"temperature": 1.0, "top_k": 0}, {"temperature": 1.0, "top_p": 0.0}]
)
def test_sampling_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="temperature="):
        distribution(np.zeros(3), **options)


def test_a_reduced_draft_vocabulary_is_zero_elsewhere() -> None:
    q = on_vocabulary(np.array([[0.25, 0.75]]), np.array([4, 1]), vocab_size=6)
    assert q.tolist() == [[0, 0.75, 0, 0, 0.25, 0]]
