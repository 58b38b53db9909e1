"""Walks in which every round verifies a DDTree, for several budgets, and which anchors need wider rows for that.

Greedy text: the target picks its own continuation at every node, so the walk is exact. Sampled text: liranringel/ddtree
draws one sample of the target at each node and goes on where it is a child, with a tree that knows no temperature; the
text that comes out is those samples. So the walk along a text that the target sampled is what that server would have
counted for it: one draw of a distribution, where rejection sampling of a chain (`sampling`) is an expectation. The
expectation over all texts (`sampling.tree_expected_accepted`) needs the target's probability at every node of every
tree, which no replay of one text has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tauscope_client.metrics.best_first import number_paths, tree_depths
from tauscope_client.metrics.prompts import PromptResult, Ratio
from tauscope_client.metrics.ranks import label_ranks
from tauscope_client.metrics.summary import Summary, pool
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.walk import Walk, walk_by_streaks

__all__ = ["STORED_BUDGETS", "TreeWalk", "WideRows", "add_trees", "tree_walks"]

# Budgets of the DDTree paper up to which few stored candidates decide most rounds: on rows whose best token has
# probability 0.5 or more, 8 candidates decide nine of ten trees of 16 and half of those of 64, and 32 nearly all.
STORED_BUDGETS = (16, 32, 64)


@dataclass(frozen=True, slots=True, eq=False)
class WideRows:
    """Rows with more candidates for some anchors of one trace, to be used instead of the trace's own.

    Attributes:
        anchors: int32 [R], ascending positions.
        top_ids: int32 [R, K, k].
        top_logprobs: float32 [R, K, k].
    """

    anchors: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TreeWalk:
    """One prompt under one budget.

    Attributes:
        budget: draft nodes of each tree, root excluded.
        walk: the rounds; `accepted` is the accepted depth (bonus not counted), `drafted` the depth of a block.
        ask_anchors: visited anchors whose rows are too narrow to decide the tree. Empty means that the walk is exact;
            otherwise it is provisional: ask for `min(budget, vocabulary)` candidates at these anchors and walk again
            (other anchors may be visited then).
    """

    budget: int
    walk: Walk
    ask_anchors: tuple[int, ...]

    @property
    def is_exact(self) -> bool:
        """Every visited tree accepts what the tree of the full rows would."""
        return not self.ask_anchors


def tree_walks(
    trace: Trace,
    budgets: Sequence[int] = STORED_BUDGETS,
    *,
    wide: WideRows | None = None,
    vocab_size: int | None = None,
) -> Mapping[int, TreeWalk]:
    """Walk one response with a DDTree in every round, for each budget.

    The tree of budget M needs the min(M, V) best candidates of each row (see `ddtree.build_tree`); with fewer, most
    rounds are still decided, and the others are named.

    Args:
        trace: one drafter on one prompt.
        budgets: draft nodes, root excluded.
        wide: wider rows for some anchors, as asked by an earlier call.
        vocab_size: V, for rows that hold the whole vocabulary.

    Raises:
        ValueError: a budget below 1, wide rows that do not fit the trace, or an anchor that the walk misses.
    """
    if not budgets or min(budgets) < 1:
        raise ValueError(f"budgets={list(budgets)}: expected one or more, each at least 1")
    index = trace.anchors.astype(np.int64) - trace.response_start
    num_labels = np.clip(trace.num_response_tokens - 1 - index, 0, trace.num_drafts)
    useful = np.flatnonzero(num_labels > 0)  # past the end of the text nothing is walked
    accepted = {budget: np.zeros(index.size, dtype=np.int64) for budget in budgets}
    is_certain = {budget: np.ones(index.size, dtype=np.bool_) for budget in budgets}

    def fill(rows: NDArray[np.int64], source: Trace, at: NDArray[np.int64]) -> None:
        """Decide the anchors `rows` of the trace with the rows `at` of `source`."""
        ranks = label_ranks(source).ranks[at]
        is_complete = vocab_size is not None and source.top_k >= vocab_size
        numbers = number_paths(source.top_logprobs[at], ranks, budget=max(budgets), is_complete=is_complete)
        for budget in budgets:
            depths = tree_depths(numbers, num_labels[rows], budget=budget)
            accepted[budget][rows], is_certain[budget][rows] = depths.accepted, depths.is_certain

    if wide is not None:
        source, rows = _widened(trace, wide)
        useful = np.setdiff1d(useful, rows)
        fill(rows, source, np.arange(rows.size))
    fill(useful, _by_rows(trace), useful)

    walks = {}
    for budget in budgets:
        rounds = walk_by_streaks(trace, accepted[budget], width=trace.num_drafts)
        rows = np.searchsorted(trace.anchors, np.asarray(rounds.anchors, dtype=np.int32))
        ask = tuple(int(trace.anchors[row]) for row in rows if not is_certain[budget][row])
        walks[budget] = TreeWalk(budget, rounds, ask)
    return MappingProxyType(walks)


def _by_rows(trace: Trace) -> Trace:
    """The trace with its rows' best tokens as drafts: a tree ranks by the rows, whatever the drafter chose."""
    if np.array_equal(trace.draft_ids, trace.top_ids[..., 0]):
        return trace
    return replace(trace, draft_ids=trace.top_ids[..., 0])


def _widened(trace: Trace, wide: WideRows) -> tuple[Trace, NDArray[np.int64]]:
    rows = np.searchsorted(trace.anchors, wide.anchors)
    if (rows >= trace.anchors.size).any() or (trace.anchors[rows] != wide.anchors).any():
        raise ValueError(f"prompt {trace.prompt_id!r}: wide rows for positions that are not among the trace's anchors")
    source = replace(
        trace,
        anchors=wide.anchors,
        draft_ids=np.asarray(wide.top_ids)[..., 0],
        top_ids=wide.top_ids,
        top_logprobs=wide.top_logprobs,
    )
    if source.num_drafts != trace.num_drafts:
        raise ValueError(
            f"prompt {trace.prompt_id!r}: wide rows draft {source.num_drafts} tokens, not {trace.num_drafts}"
        )
    return source, rows.astype(np.int64)


def add_trees(summary: Summary, walks: Mapping[str, Mapping[int, TreeWalk]]) -> Summary:
    """Add `ddtree_tau_M` to a summary: to each prompt where its walk is exact, and pooled where all are.

    Args:
        summary: of one drafter.
        walks: prompt id -> budget -> walk, as from `tree_walks`.
    """

    def extended(prompt: PromptResult) -> PromptResult:
        more = {
            f"ddtree_tau_{budget}": Ratio(sum(tree.walk.emitted), tree.walk.num_rounds)
            for budget, tree in walks.get(prompt.prompt_id, {}).items()
            if tree.is_exact
        }
        return replace(prompt, ratios={**prompt.ratios, **more})

    return pool([extended(prompt) for prompt in summary.prompts])
