"""Per-position counts: how far blocks are accepted, and how often each draft token is right on its own.

Three different columns, over two different populations (anchors the walk visits, and all response anchors): the
unconditional prefix rate, the conditional rate and the teacher-forced accuracy. They are not interchangeable: a walk
visits each anchor after a miss, and the products of marginal accuracies are not prefix rates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "PositionCounts", "count_positions", "ratio_curve"]

Curve = tuple[float | None, ...]
IntArray = NDArray[np.int64]


def ratio_curve(numerator: IntArray, denominator: IntArray) -> Curve:
    """Elementwise ratio; None where nothing was counted."""
    return tuple(float(n) / float(d) if d else None for n, d in zip(numerator, denominator, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class PositionCounts:
    """Counts over a set of anchors, int64 [K] each but `num_anchors`; two sets add up.

    Attributes:
        num_anchors: anchors counted.
        prefix: anchors whose first i drafts were all accepted, i = 1..K.
        proposed: anchors at which at least i drafts could be verified.
        right: anchors whose draft i equals its label, whatever came before it.
        labelled: anchors at which draft i has a label within the text.
    """

    num_anchors: int
    prefix: IntArray
    proposed: IntArray
    right: IntArray
    labelled: IntArray

    @classmethod
    def zeros(cls, num_drafts: int) -> "PositionCounts":
        """Nothing counted yet."""
        return cls(0, *(np.zeros(num_drafts, dtype=np.int64) for _ in range(4)))

    def __add__(self, other: "PositionCounts") -> "PositionCounts":
        """Pool two sets; the shorter block counts as not proposed beyond its length."""
        size = max(self.prefix.size, other.prefix.size)

        def pool(name: str) -> IntArray:
            total = np.zeros(size, dtype=np.int64)
            for counts in (getattr(self, name), getattr(other, name)):
                total[: counts.size] += counts
            return total

        return PositionCounts(
            self.num_anchors + other.num_anchors, pool("prefix"), pool("proposed"), pool("right"), pool("labelled")
        )

    @property
    def prefix_rate(self) -> Curve:
        """#(accepted >= i) / #anchors: every anchor stays in the denominator, as in vLLM's per-position counters."""
        return ratio_curve(self.prefix, np.full(self.prefix.size, self.num_anchors))

    @property
    def prefix_rate_proposed(self) -> Curve:
        """#(accepted >= i) / #(proposed >= i), as deepseek-ai/DeepSpec reports it."""
        return ratio_curve(self.prefix, self.proposed)

    @property
    def conditional_rate(self) -> Curve:
        """#(accepted >= i) / #(accepted >= i-1): the product of the first i is the prefix rate."""
        return ratio_curve(self.prefix, np.concatenate([[self.num_anchors], self.prefix])[: self.prefix.size])

    @property
    def teacher_forced_accuracy(self) -> Curve:
        """Share of anchors whose draft i equals its label, regardless of earlier positions."""
        return ratio_curve(self.right, self.labelled)


def count_positions(
    accepted: NDArray[np.int64], proposed: NDArray[np.int64], right: NDArray[np.bool_], labelled: NDArray[np.bool_]
) -> PositionCounts:
    """Count one set of anchors.

    Args:
        accepted: int64 [A], accepted drafts, cut at the end of the text.
        proposed: int64 [A], drafts that could be verified.
        right: bool [A, K], draft equals label.
        labelled: bool [A, K], the label lies within the text.
    """
    num_drafts = right.shape[1]
    depth = np.arange(1, num_drafts + 1)
    return PositionCounts(
        num_anchors=int(accepted.shape[0]),
        prefix=(accepted[:, None] >= depth).sum(axis=0),
        proposed=(proposed[:, None] >= depth).sum(axis=0),
        right=(right & labelled).sum(axis=0),
        labelled=labelled.sum(axis=0),
    )
