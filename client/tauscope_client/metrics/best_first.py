"""What DDTrees of many anchors accept, all at once and for every budget at once.

Runs the heap of `ddtree.build_tree` in step for all anchors. The trees themselves are not kept: only at which number
each prefix of the true continuation is taken. The first M nodes of a larger tree are the tree of budget M (a node of
place r is never among the first r), so one run serves all budgets.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOT_TAKEN", "PathNumbers", "TreeDepths", "number_paths", "tree_depths"]

NOT_TAKEN = np.iinfo(np.int32).max
# Scores of the frontier take rows x budget x 8 bytes, ranks L/4 times that: some tens of MB at most.
_MAX_CELLS = 1 << 19

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class PathNumbers(NamedTuple):
    """When each prefix of the continuation is taken, for each anchor.

    Attributes:
        taken: int32 [A, L], number of the node that is the first d tokens of the continuation, `NOT_TAKEN` when the
            run ended before.
        last_sibling: int32 [A, L], number of the node "first d-1 tokens, then the last known candidate of row d".
        num_exact: int32 [A], nodes up to which the order is certainly that of full rows, `NOT_TAKEN` for all.
    """

    taken: NDArray[np.int32]
    last_sibling: NDArray[np.int32]
    num_exact: NDArray[np.int32]


class TreeDepths(NamedTuple):
    """Accepted depth of each anchor's tree, int64 [A], and whether the known candidates suffice to say so, bool [A]."""

    accepted: IntArray
    is_certain: NDArray[np.bool_]


def number_paths(
    logprobs: NDArray[np.float32], ranks: NDArray[np.int16], *, budget: int, is_complete: bool = False
) -> PathNumbers:
    """Take nodes best first for all anchors until `budget`.

    Args:
        logprobs: float32 [A, L, k], as for `build_tree`.
        ranks: int16 [A, L], place of each true token in its row; k or more when it is not among the candidates.
        budget: nodes to take.
        is_complete: the rows hold the whole vocabulary, so that nothing follows their last place.
    """
    num_anchors = logprobs.shape[0]
    size = max(1, _MAX_CELLS // max(budget, 1))
    parts = [
        _number(logprobs[at : at + size].astype(np.float64), ranks[at : at + size], budget=budget)
        for at in range(0, num_anchors, size)
    ]
    if not parts:
        none = np.zeros((0, ranks.shape[1]), dtype=np.int32)
        return PathNumbers(none, none, np.zeros(0, dtype=np.int32))
    taken, last_sibling, num_exact = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if is_complete:
        num_exact = np.full_like(num_exact, NOT_TAKEN)
        last_sibling = np.full_like(last_sibling, NOT_TAKEN)
    return PathNumbers(taken, last_sibling, num_exact)


def _number(lp: FloatArray, ranks: NDArray[np.int16], *, budget: int) -> PathNumbers:
    num_anchors, depth_limit, top_k = lp.shape
    at = np.arange(num_anchors)
    # A frontier slot holds a node that may be taken next; empty slots have score -inf. Taking a node leaves its slot to
    # its sibling, and its child gets a new one, so the frontier of step n has n slots.
    score = np.full((num_anchors, budget + 1), -np.inf)
    depth = np.zeros((num_anchors, budget + 1), dtype=np.int64)  # of the node's row, from 0
    path = np.full((num_anchors, budget + 1, depth_limit), -1, dtype=np.int16)  # -1 sorts a prefix first
    follows = np.zeros((num_anchors, budget + 1), dtype=np.bool_)  # all but the last token are true
    score[:, 0], path[:, 0, 0], follows[:, 0] = lp[:, 0, 0], 0, True

    taken = np.full((num_anchors, depth_limit), NOT_TAKEN, dtype=np.int32)
    last_sibling = np.full((num_anchors, depth_limit), NOT_TAKEN, dtype=np.int32)
    num_exact = np.full(num_anchors, NOT_TAKEN, dtype=np.int32)
    for number in range(1, budget + 1):
        slot = _best_slot(score[:, :number], path)
        best = score[at, slot]
        is_alive = best > -np.inf
        if not is_alive.any():
            break
        row = depth[at, slot]
        rank = path[at, slot, row].astype(np.int64)
        on_path = follows[at, slot] & is_alive
        is_true = on_path & (rank == ranks[at, row])
        taken[at[is_true], row[is_true]] = number
        is_last = is_alive & (rank == top_k - 1)
        num_exact[is_last] = np.minimum(num_exact[is_last], number)
        closes = on_path & is_last
        last_sibling[at[closes], row[closes]] = number

        next_rank = np.minimum(rank + 1, top_k - 1)
        next_row = np.minimum(row + 1, depth_limit - 1)
        with np.errstate(invalid="ignore"):  # -inf - -inf in rows whose frontier is empty
            sibling = best - lp[at, row, rank] + lp[at, row, next_rank]
            child = best + lp[at, next_row, 0]
        score[:, number] = np.where(is_alive & (row + 1 < depth_limit), child, -np.inf)
        depth[:, number] = next_row
        path[:, number] = path[at, slot]
        path[at, number, next_row] = np.where(row + 1 < depth_limit, 0, path[at, number, next_row])
        follows[:, number] = is_true
        score[at, slot] = np.where(is_alive & (rank + 1 < top_k), sibling, -np.inf)
        path[at, slot, row] = next_rank
    return PathNumbers(taken, last_sibling, num_exact)


def _best_slot(score: FloatArray, path: NDArray[np.int16]) -> IntArray:
    """Slot of the highest score; of equal ones, the lexicographically smallest ranks."""
    slot: IntArray = score.argmax(axis=1)
    best = np.take_along_axis(score, slot[:, None], axis=1)
    is_best = score == best
    tied = np.flatnonzero((is_best.sum(axis=1) > 1) & (best[:, 0] > -np.inf))
    if tied.size:
        left = is_best[tied]
        paths = path[tied, : score.shape[1]]
        for row in range(paths.shape[2]):
            key = np.where(left, paths[:, :, row], np.iinfo(np.int16).max)
            left &= key == key.min(axis=1)[:, None]
        slot[tied] = left.argmax(axis=1)
    return slot


def tree_depths(numbers: PathNumbers, num_labels: IntArray, *, budget: int) -> TreeDepths:
    """Accepted depth of the tree of `budget` at each anchor, and whether it is certain.

    Unknown candidates can only delay known nodes. So a depth is certain when its nodes come no later than `num_exact`
    and the next true token is certainly not in the tree: it is known and not taken, or not known and even the last
    known candidate at that place is not taken before the last node, or there is no next token.

    Args:
        numbers: of a run with at least this budget.
        num_labels: int64 [A], true tokens known after each anchor, at most L; the walk ends there.
        budget: M.
    """
    depth_limit = numbers.taken.shape[1]
    accepted = np.minimum((numbers.taken <= budget).sum(axis=1), num_labels)
    at = np.arange(accepted.shape[0])
    deepest = np.where(accepted > 0, numbers.taken[at, np.maximum(accepted - 1, 0)], 0)
    is_over = accepted >= np.minimum(num_labels, depth_limit)
    # Whatever follows the last known candidate is taken after it.
    is_closed = numbers.last_sibling[at, np.minimum(accepted, depth_limit - 1)] >= budget
    return TreeDepths(accepted, (deepest <= numbers.num_exact) & (is_over | is_closed))
