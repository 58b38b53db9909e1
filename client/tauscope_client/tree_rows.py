"""Asks for rows wide enough to decide DDTrees, only at visited anchors where the stored ones do not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tauscope_client.metrics import TREE_BUDGETS, Trace, WideRows, tree_walks
from tauscope_wire.errors import ErrorCode, RequestError
from tauscope_wire.messages import Limits

__all__ = ["STORED_BUDGETS", "TreePlan", "decide_trees", "parse_budgets"]

STORED_BUDGETS = (16, 32, 64)
"""Budgets for which the eight stored candidates decide most rounds."""

MAX_ASKS = 200
"""A wider row can send the walk to an anchor that nobody asked for yet; each ask settles at least one."""


@dataclass(frozen=True, kw_only=True)
class TreePlan:
    """How wide rows must be.

    Attributes:
        budgets: draft nodes of the trees, ascending.
        vocab_size: V of the drafter's rows.
        top_k: candidates to ask for: the largest budget, within the service's limits.
    """

    budgets: tuple[int, ...]
    vocab_size: int
    top_k: int

    @classmethod
    def of(cls, budgets: Sequence[int], *, vocab_size: int, limits: Limits) -> "TreePlan | None":
        """The plan for some budgets, None for none."""
        if not budgets:
            return None
        top_k = min(max(budgets), vocab_size)
        if limits.max_top_k:
            top_k = min(top_k, limits.max_top_k)
        return cls(budgets=tuple(sorted(budgets)), vocab_size=vocab_size, top_k=top_k)


def parse_budgets(text: str) -> tuple[int, ...]:
    """Read `16,32,64`; nothing or `none` means no trees.

    Raises:
        RequestError: a budget that is not one of the published ones.
    """
    if text.strip() in {"", "none"}:
        return ()
    try:
        budgets = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        budgets = (0,)
    if not set(budgets) <= set(TREE_BUDGETS):
        known = ", ".join(map(str, TREE_BUDGETS))
        raise RequestError(f"--tree-budgets {text!r}: expected some of {known}, or none", ErrorCode.INVALID_REQUEST)
    return budgets


def decide_trees(trace: Trace, plan: TreePlan, ask: Callable[[list[int], int], WideRows]) -> WideRows | None:
    """Get the rows that the walks under all budgets need.

    Args:
        trace: one drafter on one text.
        plan: budgets and width.
        ask: drafts at some anchors with so many candidates.

    Returns:
        The rows, None when the stored ones decide everything (or nothing wider can be had).
    """
    wide: WideRows | None = None
    if trace.is_empty or plan.top_k <= trace.top_k:
        return None
    budgets = plan.budgets
    for _ in range(MAX_ASKS):
        walks = tree_walks(trace, budgets, wide=wide, vocab_size=plan.vocab_size)
        budgets = tuple(budget for budget in budgets if not walks[budget].is_exact)  # wider rows leave the others exact
        have = set() if wide is None else set(wide.anchors.tolist())
        wanted = sorted({anchor for walk in walks.values() for anchor in walk.ask_anchors} - have)
        if not wanted:
            break
        wide = _merged(wide, ask(wanted, plan.top_k))
    return wide


def _merged(first: WideRows | None, second: WideRows) -> WideRows:
    if first is None:
        return second
    anchors = np.concatenate([first.anchors, second.anchors])
    order = np.argsort(anchors)
    return WideRows(
        anchors=anchors[order],
        top_ids=np.concatenate([first.top_ids, second.top_ids])[order],
        top_logprobs=np.concatenate([first.top_logprobs, second.top_logprobs])[order],
    )
