"""One way to draft, and what it means when it wins. Which there are for a drafter is decided in `conditions`."""

from dataclasses import dataclass
from typing import Literal

from tauscope_wire.messages import DraftConditions

__all__ = ["DECLARED", "Condition", "Counts", "Group"]

Group = Literal[
    "declared", "taps", "context", "layout", "block", "rope", "window", "causal", "norm", "order", "tap", "noise"
]

Counts = Literal["accepted", "first", "uncut"]
"""What is compared at every anchor: `accepted` drafts, of as many as both sides draft; whether the `first` draft is
right; or accepted drafts `uncut`, of as many as each side drafts."""


@dataclass(frozen=True)
class Condition:
    """One way to draft.

    Attributes:
        name: unique, short, as tables show it.
        group: what it changes; the best of a group is its finding.
        conditions: what the drafter service is asked for, None for the declared condition.
        is_suspect: whether winning would be a finding.
        meaning: a sentence about the drafter, for when it wins (suspects only).
        advice: what to do then.
        counts: what is compared.
    """

    name: str
    group: Group
    conditions: DraftConditions | None = None
    is_suspect: bool = False
    meaning: str = ""
    advice: str = ""
    counts: Counts = "accepted"


DECLARED = Condition("declared", "declared")
