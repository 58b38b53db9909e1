"""What sampling would accept along one text, as ratios that pool over prompts like every other statistic.

Expectations, never counts: the acceptances come from both distributions at every draft position, and the text decides
only where the walk goes on.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tauscope_client.metrics.prompts import Ratio
from tauscope_client.metrics.sampling import expected_accepted, expected_rounds, expected_walk
from tauscope_client.metrics.trace import Trace

__all__ = ["DRAFTINGS", "EXPECTATIONS", "expected_ratios", "weighted_rounds"]

DRAFTINGS = ("sampled", "greedy")
"""How drafts are chosen: drawn from q (accepted with sum min(p, q)), or the best token of q (with p of it)."""

EXPECTATIONS = tuple(
    f"{name}_{how}" for name in ("expected_tau", "expected_emitted", "expected_acceptance") for how in DRAFTINGS
)
"""Names in `DEFINITIONS`; the first is the headline of sampled references."""


def weighted_rounds(trace: Trace, rates: NDArray[np.float64]) -> tuple[tuple[int, float, float], ...]:
    """Anchor, chance of a round there, and tokens that it emits on average; errors as `expected_ratios`."""
    chances, emitted = expected_rounds(trace, rates)
    start = trace.response_start
    return tuple((start + at, *one) for at, one in enumerate(zip(chances.tolist(), emitted.tolist(), strict=True)))


def expected_ratios(trace: Trace, alphas: Mapping[str, NDArray[np.float64]]) -> dict[str, Ratio]:
    """The expectations of one drafter on one text.

    Args:
        trace: anchors and end of the text; every response position before the end must be an anchor.
        alphas: way of drafting -> float64 [A, K], acceptance of each draft position, 0 past the end of the text.

    Raises:
        ValueError: shapes or anchors do not fit.
    """
    end = trace.num_response_tokens
    index = trace.anchors.astype(np.int64) - trace.response_start
    within = index < end - 1
    in_text = np.arange(1, trace.num_drafts + 1) <= (end - 1 - index[within])[:, None]
    ratios = {}
    for how, rates in alphas.items():
        ratios[f"expected_tau_{how}"] = expected_walk(trace, rates)
        kept = np.where(in_text, rates[within], 0.0)
        emitted = 1.0 + expected_accepted(kept)
        ratios[f"expected_emitted_{how}"] = Ratio(float(emitted.sum()), int(within.sum()))
        ratios[f"expected_acceptance_{how}"] = Ratio(float(kept.sum()), int(in_text.sum()))
    return ratios
