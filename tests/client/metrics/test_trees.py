from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_client.metrics.ddtree import build_tree
from tauscope_client.metrics.ranks import label_ranks, streaks
from tauscope_client.metrics.summary import summarise
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.trees import WideRows, add_trees, tree_walks
from tauscope_client.metrics.walk import walk

Make = Callable[..., Trace]
VOCAB, BUDGETS = 8, (1, 3, 9, 25)


def random_pair(seed: int, *, top_k: int) -> tuple[Trace, Trace]:
    """One text with whole rows, and the same with only the `top_k` best of each row."""
    rng = np.random.default_rng(seed)
    length, num_drafts = int(rng.integers(2, 14)), 3
    response = rng.integers(1, VOCAB, size=length)
    response[-1] = 0 if rng.random() < 0.5 else response[-1]
    logits = rng.normal(size=(length - 1, num_drafts, VOCAB)) * 2
    for index in range(length - 1):
        for column in range(num_drafts):
            if index + 1 + column < length:
                logits[index, column, response[index + 1 + column]] += rng.choice([0, 2, 4])
    logprobs = (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))).astype(np.float32)
    ids = np.argsort(-logprobs, axis=-1, kind="stable")
    logprobs = np.take_along_axis(logprobs, ids, axis=-1)

    def trace(k: int) -> Trace:
        return Trace(
            prompt_id=f"p{seed}",
            token_ids=np.concatenate([[5, 6], response]),
            response_start=2,
            anchors=2 + np.arange(length - 1),
            draft_ids=ids[..., 0],
            top_ids=ids[..., :k],
            top_logprobs=logprobs[..., :k],
            stop_ids=frozenset({0}),
        )

    return trace(VOCAB), trace(top_k)


def slow_tree_rounds(trace: Trace, budget: int) -> list[tuple[int, int, int]]:
    """Build the tree at each anchor the walk visits, follow the text down it, cut at the end of the text."""
    text = trace.token_ids.tolist()[: trace.response_start + trace.num_response_tokens]
    at, rounds = trace.response_start, []
    while at < len(text) - 1:
        row = at - trace.response_start
        tree = build_tree(trace.top_logprobs[row], trace.top_ids[row], budget=budget)
        labels = text[at + 1 : at + 1 + trace.num_drafts]
        accepted = tree.accepted(labels)
        emitted = min(accepted + 1, len(text) - 1 - at)
        rounds.append((at, accepted, emitted))
        at += accepted + 1
    return rounds


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_tree_walk_equals_a_loop_that_builds_each_tree(seed: int) -> None:
    whole, _ = random_pair(seed, top_k=VOCAB)
    for budget, found in tree_walks(whole, BUDGETS, vocab_size=VOCAB).items():
        rounds = list(zip(found.walk.anchors, found.walk.accepted, found.walk.emitted, strict=True))
        assert rounds == slow_tree_rounds(whole, budget)
        assert found.is_exact


@given(seed=st.integers(0, 2**32 - 1), top_k=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_asking_wider_rows_until_nothing_is_missing_gives_the_walk_of_whole_rows(seed: int, top_k: int) -> None:
    whole, narrow = random_pair(seed, top_k=top_k)
    expected = tree_walks(whole, BUDGETS, vocab_size=VOCAB)
    asked: set[int] = set()
    for _ in range(narrow.anchors.size + 1):
        rows = np.array(sorted(asked), dtype=np.int64)
        wide = WideRows(
            anchors=rows.astype(np.int32),
            top_ids=whole.top_ids[rows - 2],
            top_logprobs=whole.top_logprobs[rows - 2],
        )
        found = tree_walks(narrow, BUDGETS, wide=wide, vocab_size=VOCAB)
        missing = {anchor for tree in found.values() for anchor in tree.ask_anchors}
        assert not missing & asked
        for budget, tree in found.items():
            if tree.is_exact:
                assert tree == expected[budget]
        if not missing:
            break
        asked |= missing
    assert found == expected


def test_the_tree_of_one_node_is_a_walk_of_width_one() -> None:
    for seed in range(30):
        whole, _ = random_pair(seed, top_k=VOCAB)
        narrow, chain = tree_walks(whole, (1,), vocab_size=VOCAB)[1].walk, walk(whole, width=1)
        assert (narrow.anchors, narrow.accepted, narrow.emitted) == (chain.anchors, chain.accepted, chain.emitted)


def test_a_tree_of_k_nodes_accepts_no_more_than_the_full_k_ary_one() -> None:
    for seed in range(30):
        whole, _ = random_pair(seed, top_k=VOCAB)
        for budget, tree in tree_walks(whole, (1, 2, 4), vocab_size=VOCAB).items():
            longest = streaks(label_ranks(whole).ranks, k=budget)
            assert all(a <= longest[p - 2] for p, a in zip(tree.walk.anchors, tree.walk.accepted, strict=True))


def test_summary_gets_tree_taus_where_exact_and_null_where_one_prompt_is_not(make_trace: Make) -> None:
    whole, narrow = random_pair(3, top_k=1)
    assert not tree_walks(narrow, (64,))[64].is_exact
    exact = add_trees(summarise([whole]), {"p3": tree_walks(whole, (16, 64), vocab_size=VOCAB)})
    assert exact.values["ddtree_tau_64"] == tree_walks(whole, (64,), vocab_size=VOCAB)[64].walk.tau
    other, _ = random_pair(4, top_k=VOCAB)
    mixed = add_trees(
        summarise([narrow, other]),
        {"p3": tree_walks(narrow, (64,)), "p4": tree_walks(other, (64,), vocab_size=VOCAB)},
    )
    assert mixed.values["ddtree_tau_64"] is None
    assert "ddtree_tau_64" in mixed.to_dict()["definitions"]


def served_with_trees(p: np.ndarray, rows: np.ndarray, budget: int, num_tokens: int, rng: np.random.Generator) -> int:
    """Rounds of a server that draws one token of the target at every node and walks where it is a child."""
    at, num_left, rounds = 0, num_tokens, 0
    ids = np.argsort(-rows, axis=-1, kind="stable")
    while num_left > 0:
        ranked = np.take_along_axis(rows[at], ids[at], axis=-1)
        tree = build_tree(ranked, ids[at], budget=budget, vocab_size=p.shape[0])
        drawn = [int(rng.choice(p.shape[0], p=p[token])) for token in (at, *(node.token for node in tree.nodes))]
        children = {(node.parent, node.token): number for number, node in enumerate(tree.nodes, start=1)}
        node, emitted = 0, 1
        while (node, drawn[node]) in children:
            node = children[node, drawn[node]]
            emitted += 1
        at, num_left, rounds = drawn[node], num_left - emitted, rounds + 1
    return rounds


def test_walks_along_sampled_texts_count_the_rounds_of_a_server_that_samples_at_every_node() -> None:
    rng = np.random.default_rng(7)
    vocab, num_drafts, num_tokens, budget, num_texts = 5, 3, 30, 6, 400
    p = rng.dirichlet(np.full(vocab, 0.5), size=vocab)  # the next token depends on the last one
    rows = np.log(rng.dirichlet(np.full(vocab, 0.7), size=(vocab, num_drafts))).astype(np.float32)  # so do drafts
    ids = np.argsort(-rows, axis=-1, kind="stable")
    served = [served_with_trees(p, rows, budget, num_tokens, rng) for _ in range(num_texts)]
    replayed = []
    for _ in range(num_texts):
        text = [0]
        for _ in range(num_tokens):
            text.append(int(rng.choice(vocab, p=p[text[-1]])))
        last = np.array(text[:-1])
        trace = Trace(
            prompt_id="t",
            token_ids=np.array([9, *text]),
            response_start=1,
            anchors=1 + np.arange(num_tokens),
            draft_ids=ids[last][..., 0],
            top_ids=ids[last],
            top_logprobs=np.take_along_axis(rows, ids, axis=-1)[last],
            stop_ids=frozenset({9}),
        )
        replayed.append(tree_walks(trace, (budget,), vocab_size=vocab)[budget].walk.num_rounds)
    assert np.std(served) > 1  # not the same every time, so that equal means say something
    # both are means of independent texts: they differ by more than four standard errors once in 16,000 seeds
    error = np.sqrt((np.var(served) + np.var(replayed)) / num_texts)
    assert abs(np.mean(served) - np.mean(replayed)) < 4 * error
    assert error < 0.02 * np.mean(served)


def test_an_empty_response_has_no_tree_to_walk(make_trace: Make) -> None:
    found = tree_walks(make_trace({}, (7,), num_drafts=3, stop_ids={7}))
    assert all(walk.is_exact and walk.walk.num_rounds == 0 for walk in found.values())


def test_wide_rows_that_do_not_fit_and_bad_budgets_are_refused() -> None:
    whole, narrow = random_pair(3, top_k=2)
    stray = WideRows(np.array([99], dtype=np.int32), whole.top_ids[:1], whole.top_logprobs[:1])
    with pytest.raises(ValueError, match="not among the trace's anchors"):
        tree_walks(narrow, (4,), wide=stray)
    short = WideRows(whole.anchors[:1], whole.top_ids[:1, :2], whole.top_logprobs[:1, :2])
    with pytest.raises(ValueError, match="draft 2 tokens, not 3"):
        tree_walks(narrow, (4,), wide=short)
    with pytest.raises(ValueError, match=r"budgets=\[0\]"):
        tree_walks(narrow, (0,))
