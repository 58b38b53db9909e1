"""Paired differences judged by flipping signs: exact for few conversations, and fair to many questions at once.

If a condition is no better than the declared one, the difference of a conversation is as likely to be +x as -x, so
every pattern of flipped signs is as likely as the one seen. The p-value is the share of patterns whose sum is at least
the one seen; patterns are all 2^n of them, or drawn. Turned around, the interval consists of the typical values of
J. A. Hartigan ("Using subsample values as typical values", 1969): for a shift d, a pattern counts against it exactly
when the mean difference over the conversations that it flips is at most d, so the ends are quantiles of these means.

Why not the bootstrap of `metrics.intervals`: the answers of one set differ much in how well they are drafted (0.3 to 15
accepted tokens in one set of ten), a ratio over ten such answers has no spread that a few can estimate, and with twenty
conditions at a time its intervals were wider than effects on which all ten answers agree.

Many conditions: Westfall and Young's minP (1993). The joint p-value of a condition is the share of patterns in which
any condition gets a p-value as small as its own. All conditions see the same pattern, so their correlation is used. The
chance to call any of the conditions better that is not is at most the level.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Judged", "judge_differences"]

_MAX_EXACT = 12
"""2^12 patterns are few; for more conversations patterns are drawn."""

NUM_DRAWN = 9999
"""With the one seen 10,000: p-values are known to 0.0001, ends of intervals to about one part in fifty."""

_TIE = 1e-9
"""Sums of the same differences in another order are equal up to rounding."""

FloatArray = NDArray[np.float64]


class Judged(NamedTuple):
    """What the flips say about m conditions.

    Attributes:
        p_values: [m], one-sided: the share of patterns with a sum as large as the one seen.
        joint_p_values: [m], the same with all conditions asked at once.
        low: [m], lower ends of the intervals of the pooled difference; -inf when there are too few conversations.
        high: [m], upper ends; inf likewise.
    """

    p_values: FloatArray
    joint_p_values: FloatArray
    low: FloatArray
    high: FloatArray


def judge_differences(
    sums: FloatArray, weights: FloatArray, *, level: float = 0.95, seed: int = 0, num_drawn: int = NUM_DRAWN
) -> Judged:
    """Judge the pooled differences sum(sums) / sum(weights) of m conditions over the same n conversations.

    Args:
        sums: float64 [m, n], sum of the differences over the anchors of each conversation.
        weights: float64 [n], anchors of each conversation, all positive.
        level: two-sided coverage of the intervals, for differences that are symmetric about their centre.
        seed: of drawn patterns.
        num_drawn: patterns drawn, where there are too many to take all.
    """
    is_flipped = _patterns(sums.shape[1], seed, num_drawn)
    # Flipping the signs of a set J lowers the sum by twice the sum over J: it stays as large exactly if that is <= 0.
    lowered = is_flipped @ sums.T  # [F, m]
    scale = _TIE * np.abs(sums).sum(axis=1)
    p_values, joint = _p_values(lowered, scale)
    flipped_weight = is_flipped @ weights
    some = flipped_weight > 0
    means = np.sort(lowered[some] / flipped_weight[some, None], axis=0)
    tail = int(np.floor((1 - level) / 2 * len(is_flipped))) - int((~some).sum())
    if tail < 0:
        nothing = np.full(len(sums), np.inf)
        return Judged(p_values, joint, -nothing, nothing)
    return Judged(p_values, joint, means[tail], means[-1 - tail])


def _patterns(n: int, seed: int, num_drawn: int) -> FloatArray:
    """Which conversations are flipped, 0 or 1 [F, n]; the first pattern flips none."""
    if n <= _MAX_EXACT:
        return ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1).astype(np.float64)
    drawn = np.random.default_rng(seed).integers(0, 2, size=(num_drawn, n)).astype(np.float64)
    return np.concatenate([np.zeros((1, n)), drawn])


def _p_values(lowered: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Own and joint p-values of the pattern seen, [m] each; `lowered` [F, m] is half of what a pattern takes away."""
    num_patterns = len(lowered)
    each = np.empty_like(lowered)
    for condition, taken in enumerate(lowered.T):
        # share of patterns whose sum is at least that of this pattern, for every pattern
        each[:, condition] = np.searchsorted(np.sort(taken), taken + scale[condition], side="right") / num_patterns
    smallest = each.min(axis=1)
    joint = (smallest[:, None] <= each[0] + 0.5 / num_patterns).mean(axis=0)
    return each[0], joint
