from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_client.metrics.best_first import NOT_TAKEN, number_paths, tree_depths
from tauscope_client.metrics.ddtree import build_tree

# The worked example of the tree: three rows of probabilities over four tokens.
GOLDEN = ((0.60, 0.25, 0.10, 0.05), (0.21, 0.50, 0.19, 0.10), (0.12, 0.10, 0.08, 0.70))
GOLDEN_NODES = [
    (0, 1, 0, (0,), 0.600),
    (1, 2, 1, (0, 0), 0.300),
    (1, 1, 0, (1,), 0.250),
    (3, 3, 2, (0, 0, 0), 0.210),
    (0, 2, 1, (0, 1), 0.126),
    (1, 2, 3, (1, 0), 0.125),
    (2, 2, 1, (0, 2), 0.114),
    (2, 1, 0, (2,), 0.100),
]


def golden_rows() -> tuple[np.ndarray, np.ndarray]:
    probabilities = np.array(GOLDEN)
    ids = np.argsort(-probabilities, axis=1, kind="stable")
    return np.log(np.take_along_axis(probabilities, ids, axis=1)), ids


def random_rows(seed: int, *, depth: int, vocab: int, dyadic: bool = False) -> np.ndarray:
    """Float32 log-probabilities, each row descending; dyadic ones add without rounding and tie often."""
    rng = np.random.default_rng(seed)
    if dyadic:
        return -np.sort(rng.integers(0, 6, size=(depth, vocab)), axis=1).astype(np.float32) / 4
    logits = rng.normal(size=(depth, vocab)) * rng.uniform(0.3, 4)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -np.sort(-np.minimum(logprobs, 0.0), axis=1).astype(np.float32)


def rows_that_round(seed: int, *, depth: int, vocab: int) -> np.ndarray:
    """Log-probabilities from 1e-12 to 30, as of a sure drafter: their float64 sums depend on the order of adding."""
    exponents = np.random.default_rng(seed).uniform(-12, 1.5, size=(depth, vocab))
    return -np.sort(10**exponents, axis=1).astype(np.float32)


def path_score(rows: np.ndarray, ranks: tuple[int, ...]) -> float:
    """The sum as it accumulates on the way: down by one place at a time in each row, then to the next row."""
    score = 0.0
    for depth, rank in enumerate(ranks):
        score = score + float(rows[depth, 0]) if depth else float(rows[0, 0])
        for place in range(rank):
            score = score - float(rows[depth, place]) + float(rows[depth, place + 1])
    return score


def brute_force(rows: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    """Every prefix there is, best score first, ties by ranks."""
    depth, width = rows.shape
    prefixes = [ranks for length in range(1, depth + 1) for ranks in product(range(width), repeat=length)]
    return sorted(prefixes, key=lambda ranks: (-path_score(rows, ranks), ranks))[:budget]


def test_golden_tree_has_these_nodes_in_this_order() -> None:
    tree = build_tree(*golden_rows(), budget=8, vocab_size=4)
    for node, (token, depth, parent, ranks, probability) in zip(tree.nodes, GOLDEN_NODES, strict=True):
        assert node[:4] == (token, depth, parent, ranks)
        # Float32 log-probabilities carry about 1e-7 each.
        assert np.exp(node.score) == pytest.approx(probability, rel=1e-6)
    assert tree.num_exact == 8


@pytest.mark.parametrize(
    ("budget", "continuation", "accepted"),
    [
        (3, (0, 1, 3), 2),
        (8, (0, 1, 3), 3),
        (3, (1, 1, 0), 1),
        (8, (1, 1, 0), 2),
        (3, (3, 1, 3), 0),
        (8, (3, 1, 3), 0),
    ],
)
def test_golden_continuations_are_accepted_this_far(budget: int, continuation: tuple[int, ...], accepted: int) -> None:
    logprobs, ids = golden_rows()
    assert build_tree(logprobs, ids, budget=budget, vocab_size=4).accepted(continuation) == accepted
    ranks = np.array([[row.tolist().index(token) for row, token in zip(ids, continuation, strict=True)]])
    numbers = number_paths(logprobs.astype(np.float32)[None], ranks.astype(np.int16), budget=8, is_complete=True)
    depths = tree_depths(numbers, np.array([3]), budget=budget)
    assert depths.accepted.tolist() == [accepted]
    assert depths.is_certain.all()


def test_golden_surrogates_are_the_sums_of_node_probabilities() -> None:
    tree = build_tree(*golden_rows(), budget=8, vocab_size=4)
    probabilities = [float(np.exp(node.score)) for node in tree.nodes]
    assert 1 + sum(probabilities[:3]) == pytest.approx(2.15, rel=1e-6)
    assert 1 + sum(probabilities) == pytest.approx(2.825, rel=1e-6)


def test_equal_scores_are_taken_in_the_order_of_their_ranks() -> None:
    tree = build_tree(np.log([[0.5, 0.5]] * 2), [[0, 1]] * 2, budget=6, vocab_size=2)
    assert [node.ranks for node in tree.nodes] == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert [node.parent for node in tree.nodes] == [0, 0, 1, 1, 2, 2]


@given(
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(1, 4),
    vocab=st.integers(1, 4),
    budget=st.integers(1, 40),
    dyadic=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_tree_is_the_most_probable_prefixes_of_all(
    seed: int, depth: int, vocab: int, budget: int, dyadic: bool
) -> None:
    rows = random_rows(seed, depth=depth, vocab=vocab, dyadic=dyadic)
    tree = build_tree(rows, np.tile(np.arange(vocab), (depth, 1)), budget=budget, vocab_size=vocab)
    assert [node.ranks for node in tree.nodes] == brute_force(rows, budget)
    for node in tree.nodes:
        assert node.score == path_score(rows, node.ranks)
        assert (tree.nodes[node.parent - 1].ranks if node.parent else ()) == node.ranks[:-1]


def test_scores_accumulate_in_the_order_of_the_original_and_that_order_matters() -> None:
    num_other = 0
    for seed in range(50):
        rows = rows_that_round(seed, depth=3, vocab=4)
        tree = build_tree(rows, np.tile(np.arange(4), (3, 1)), budget=60)
        for node in tree.nodes:
            assert node.score == path_score(rows, node.ranks)
            num_other += node.score != sum(float(rows[d, rank]) for d, rank in enumerate(node.ranks))
    assert num_other > 0


def test_many_trees_at_once_round_as_one_tree_does() -> None:
    # Two siblings of equal score to the last bit but one: the order of adding decides which is taken first.
    for seed in range(300):
        rows = rows_that_round(seed, depth=3, vocab=3)
        rows[1:] = rows[0]  # permuted sums of the same terms: near ties everywhere
        order = [node.ranks for node in build_tree(rows, np.tile(np.arange(3), (3, 1)), budget=39).nodes]
        paths = np.array(list(product(range(3), repeat=3)), dtype=np.int16)
        numbers = number_paths(np.repeat(rows[None], len(paths), axis=0), paths, budget=39)
        for path, taken in zip(paths.tolist(), numbers.taken.tolist(), strict=True):
            assert taken == [order.index(tuple(path[: d + 1])) + 1 for d in range(3)]


@given(seed=st.integers(0, 2**32 - 1), top_k=st.integers(1, 5), budget=st.integers(1, 40), dyadic=st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_tree_of_narrow_rows_is_the_true_one_as_far_as_it_says(
    seed: int, top_k: int, budget: int, dyadic: bool
) -> None:
    rows = random_rows(seed, depth=3, vocab=6, dyadic=dyadic)
    ids = np.tile(np.arange(6), (3, 1))
    whole = build_tree(rows, ids, budget=budget, vocab_size=6)
    narrow = build_tree(rows[:, :top_k], ids[:, :top_k], budget=budget, vocab_size=6)
    assert narrow.nodes[: narrow.num_exact] == whole.nodes[: narrow.num_exact]
    assert narrow.num_exact >= min(top_k, budget)
    if top_k >= budget:
        assert narrow.nodes == whole.nodes


@given(seed=st.integers(0, 2**32 - 1), small=st.integers(1, 30), more=st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_a_smaller_budget_is_the_beginning_of_a_larger_one(seed: int, small: int, more: int) -> None:
    rows = random_rows(seed, depth=4, vocab=50)
    ids = np.tile(np.arange(50), (4, 1))
    limited = build_tree(rows[:, :small], ids[:, :small], budget=small)
    assert limited.nodes == build_tree(rows, ids, budget=small + more).nodes[:small]


@given(
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(1, 5),
    top_k=st.integers(1, 5),
    dyadic=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_many_trees_at_once_number_each_prefix_as_one_tree_does(
    seed: int, depth: int, top_k: int, dyadic: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.stack([random_rows(seed + i, depth=depth, vocab=top_k, dyadic=dyadic) for i in range(5)])
    ranks = rng.integers(0, top_k + 1, size=(5, depth)).astype(np.int16)
    numbers = number_paths(rows, ranks, budget=40)
    for anchor in range(5):
        tree = build_tree(rows[anchor], np.tile(np.arange(top_k), (depth, 1)), budget=40)
        order = {node.ranks: number for number, node in enumerate(tree.nodes, start=1)}
        path = tuple(ranks[anchor].tolist())
        assert numbers.taken[anchor].tolist() == [order.get(path[: d + 1], NOT_TAKEN) for d in range(depth)]
        last = [order.get((*path[:d], top_k - 1), NOT_TAKEN) for d in range(depth)]
        assert numbers.last_sibling[anchor].tolist() == last
        assert min(int(numbers.num_exact[anchor]), len(tree.nodes)) == tree.num_exact


@given(seed=st.integers(0, 2**32 - 1), top_k=st.integers(1, 6), budget=st.integers(1, 30), dyadic=st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_depth_called_certain_is_that_of_the_whole_rows(seed: int, top_k: int, budget: int, dyadic: bool) -> None:
    rng = np.random.default_rng(seed)
    vocab, depth = 6, 3
    rows = np.stack([random_rows(seed + i, depth=depth, vocab=vocab, dyadic=dyadic) for i in range(6)])
    ranks = rng.integers(0, vocab, size=(6, depth)).astype(np.int16)
    num_labels = rng.integers(0, depth + 1, size=6)
    depths = tree_depths(number_paths(rows[..., :top_k], ranks, budget=30), num_labels, budget=budget)
    for anchor in range(6):
        tree = build_tree(rows[anchor], np.tile(np.arange(vocab), (depth, 1)), budget=budget, vocab_size=vocab)
        if depths.is_certain[anchor]:
            assert depths.accepted[anchor] == tree.accepted(ranks[anchor, : num_labels[anchor]])
    if top_k >= budget:
        assert depths.is_certain.all()


def test_sharp_rows_are_mostly_decided_by_eight_candidates_and_always_by_as_many_as_the_budget() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 15, 500)) * 6  # the best token of a row has probability 0.6 in the mean
    rows = -np.sort(-(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))), axis=-1).astype(np.float32)
    ranks = (rng.geometric(0.6, size=(200, 15)) - 1).astype(np.int16)
    certain = [
        tree_depths(number_paths(rows[..., :k], ranks, budget=64), np.full(200, 15), budget=64).is_certain.mean()
        for k in (8, 64)
    ]
    assert 0.5 < certain[0] < 1.0
    assert certain[1] == 1.0


def test_a_chain_is_not_always_in_the_tree_of_as_many_nodes() -> None:
    wide = np.log(np.tile(np.float32([0.5, 0.3, 0.2]), (3, 1)))
    assert build_tree(wide, [[0, 1, 2]] * 3, budget=3).accepted((0, 0, 0)) == 2


def test_a_candidate_of_probability_zero_is_never_a_node() -> None:
    rows = np.float32([[0.0, -np.inf], [-0.5, -np.inf]])
    tree = build_tree(rows, [[3, 4], [5, 6]], budget=9)
    assert [node.token for node in tree.nodes] == [3, 5]
    numbers = number_paths(rows[None], np.zeros((1, 2), dtype=np.int16), budget=9)
    assert numbers.taken.tolist() == [[1, 2]]
    assert build_tree(np.full((2, 2), -np.inf), [[3, 4], [5, 6]], budget=9).nodes == ()


def test_no_anchors_give_no_depths() -> None:
    numbers = number_paths(np.zeros((0, 3, 2), dtype=np.float32), np.zeros((0, 3), dtype=np.int16), budget=4)
    assert tree_depths(numbers, np.zeros(0, dtype=np.int64), budget=4).accepted.size == 0


@pytest.mark.parametrize(
    ("rows", "ids", "budget", "message"),
    [
        ([[0.0]], [[1, 2]], 1, r"logprobs \[1, 1\] and ids \[1, 2\]"),
        ([0.0], [1], 1, r"expected the same \[L, k\]"),
        ([[0.0]], [[1]], 0, "budget=0"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: list, ids: list, budget: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tree(rows, ids, budget=budget)
