"""Acceptance metrics of a drafter, from arrays alone: no I/O, nothing but numpy.

Build a `Trace` for each prompt, then `summarise` them; `tree_walks` and `add_trees` add DDTrees, `intervals_of` says
how far a number may be off, `compare` sets two drafters side by side, `by_tag` and its neighbours split by stratum.
What every number means is in `DEFINITIONS`.
"""

from tauscope_client.metrics.compare import Comparison, compare
from tauscope_client.metrics.definitions import DEFINITIONS, TOP_KS, TREE_BUDGETS
from tauscope_client.metrics.estimates import intervals_of
from tauscope_client.metrics.expectations import EXPECTATIONS, expected_ratios, weighted_rounds
from tauscope_client.metrics.intervals import Interval
from tauscope_client.metrics.prompts import PromptResult, Ratio, measure
from tauscope_client.metrics.speed import SpeedEstimate, estimate_speed
from tauscope_client.metrics.strata import Stratum, by_answer_position, by_context_length, by_tag
from tauscope_client.metrics.summary import Summary, pool, summarise
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.trees import TreeWalk, WideRows, add_trees, tree_walks
from tauscope_client.metrics.walk import Walk, walk

__all__ = [
    "DEFINITIONS",
    "EXPECTATIONS",
    "TOP_KS",
    "TREE_BUDGETS",
    "Comparison",
    "Interval",
    "PromptResult",
    "Ratio",
    "SpeedEstimate",
    "Stratum",
    "Summary",
    "Trace",
    "TreeWalk",
    "Walk",
    "WideRows",
    "add_trees",
    "by_answer_position",
    "by_context_length",
    "by_tag",
    "compare",
    "estimate_speed",
    "expected_ratios",
    "intervals_of",
    "measure",
    "pool",
    "summarise",
    "tree_walks",
    "walk",
    "weighted_rounds",
]
