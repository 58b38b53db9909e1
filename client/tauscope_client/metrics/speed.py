"""From acceptance to speed: an estimate, and only that. Acceptance is not speed.

One round costs one draft and one verification; without speculation each token costs one target step. The estimate
takes a verification for as dear as a plain step unless told otherwise, which holds for small batches where weights are
read once either way, and leaves out scheduling, sampling and batching with other requests.
"""

from dataclasses import dataclass
from typing import Any

from tauscope_client.metrics.intervals import Interval

__all__ = ["SpeedEstimate", "estimate_speed"]


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """Estimated speed-up over plain decoding, at batch size 1.

    Attributes:
        speed_up: tau times the cost of a plain step over the cost of a round; None without a tau.
        low: the same at the lower end of tau's interval, None when not given.
        high: the same at its upper end.
        break_even_tau: the tau below which speculation loses.
        draft_cost_ms: one block drafted.
        target_cost_ms: one plain decoding step.
        verify_cost_ms: one verification.
    """

    speed_up: float | None
    low: float | None
    high: float | None
    break_even_tau: float
    draft_cost_ms: float
    target_cost_ms: float
    verify_cost_ms: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; says in so many words that it is an estimate."""
        return {
            "speed_up_estimate": self.speed_up,
            "low": self.low,
            "high": self.high,
            "break_even_tau": self.break_even_tau,
            "draft_cost_ms": self.draft_cost_ms,
            "target_cost_ms": self.target_cost_ms,
            "verify_cost_ms": self.verify_cost_ms,
            "is_estimate": True,
        }


def estimate_speed(
    tau: float | Interval | None, *, draft_cost_ms: float, target_cost_ms: float, verify_cost_ms: float | None = None
) -> SpeedEstimate:
    """Estimate tau / (1 + draft cost / target cost), or with a verification cost tau * target / (draft + verify).

    Args:
        tau: mean emitted tokens a round, or its interval (costs are taken as known exactly).
        draft_cost_ms: one block drafted, measured or given.
        target_cost_ms: one plain decoding step.
        verify_cost_ms: one verification; None means as much as a plain step.

    Raises:
        ValueError: a cost is negative, or the target's is not positive.
    """
    verify = target_cost_ms if verify_cost_ms is None else verify_cost_ms
    if draft_cost_ms < 0 or not target_cost_ms > 0 or not verify > 0:
        raise ValueError(
            f"draft_cost_ms={draft_cost_ms}, target_cost_ms={target_cost_ms}, verify_cost_ms={verify}: "
            "expected 0 or more, and above 0 for the target"
        )
    break_even = (draft_cost_ms + verify) / target_cost_ms
    values = (tau.estimate, tau.low, tau.high) if isinstance(tau, Interval) else (tau, None, None)
    speed_up, low, high = (None if value is None else value / break_even for value in values)
    return SpeedEstimate(speed_up, low, high, break_even, draft_cost_ms, target_cost_ms, verify)
