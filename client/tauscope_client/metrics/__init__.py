"""Acceptance metrics of a drafter, from arrays alone: no I/O, nothing but numpy.

Build a `Trace` for each prompt, then `summarise` them. Definitions of every number are in `DEFINITIONS`.
"""

from tauscope_client.metrics.definitions import DEFINITIONS, TOP_KS
from tauscope_client.metrics.prompts import PromptResult, Ratio, measure
from tauscope_client.metrics.summary import Summary, pool, summarise
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.walk import Walk, walk

__all__ = [
    "DEFINITIONS",
    "TOP_KS",
    "PromptResult",
    "Ratio",
    "Summary",
    "Trace",
    "Walk",
    "measure",
    "pool",
    "summarise",
    "walk",
]
