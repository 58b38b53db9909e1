"""How much better or worse each condition is than the declared one: paired differences over all response anchors.

The statistic is the mean number of accepted drafts over all response anchors, no bonus: every anchor counts, so that a
condition is not judged by the few anchors that its own walk visits. Where conditions draft different numbers of tokens,
both sides are cut to the smaller number, or, where the block itself is in question, to the first draft, or not at all
(`conditions.Counts`). A conversation is the unit; see `sign_flips` for how it is judged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tauscope_client.probe.condition import DECLARED, Condition
from tauscope_client.probe.sign_flips import FloatArray, judge_differences

__all__ = ["LEVEL", "Effect", "Text", "effects_of"]

LEVEL = 0.95
"""Two-sided coverage of the interval of every single gain."""


@dataclass(frozen=True)
class Text:
    """What was accepted on one text.

    Attributes:
        id: of the reference.
        conversation: the unit that is judged.
        accepted: condition name -> int [A], accepted drafts at every response anchor.
    """

    id: str
    conversation: str
    accepted: Mapping[str, NDArray[np.int32]]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One condition against the declared one.

    Attributes:
        condition: what was changed; its `counts` says what the numbers here are of.
        accepted: mean accepted drafts over all response anchors under it, or share of anchors whose first is right.
        declared: the same as declared, over the same anchors and as many drafts.
        low: lower end of the interval of the gain, None with too few conversations.
        high: upper end.
        joint_p: chance of a gain like this of any suspect if none is better than declared; None for ablations and for
            suspects that changed nothing.
        wins: conversations on which it accepts more than as declared.
        losses: conversations on which it accepts less.
        is_idle: it changed nothing at any anchor.
        first_low: lower end of the interval of the gain in first drafts that are right, per anchor.
        first_high: upper end.
    """

    condition: Condition
    accepted: float
    declared: float
    low: float | None
    high: float | None
    joint_p: float | None
    wins: int
    losses: int
    is_idle: bool
    first_low: float | None = None
    first_high: float | None = None

    @property
    def gain(self) -> float:
        """More than as declared, per anchor, of what the condition counts."""
        return self.accepted - self.declared

    @property
    def excludes_zero(self) -> bool:
        """The interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        conditions = self.condition.conditions
        return {
            "name": self.condition.name,
            "group": self.condition.group,
            "is_suspect": self.condition.is_suspect,
            "conditions": {} if conditions is None else conditions.in_force(),
            "counts": self.condition.counts,
            "accepted": self.accepted,
            "declared": self.declared,
            "gain": self.gain,
            "interval_95": [self.low, self.high],
            "first_interval_95": [self.first_low, self.first_high],
            "joint_p": self.joint_p,
            "wins": self.wins,
            "losses": self.losses,
            "changes_nothing": self.is_idle,
        }


def effects_of(
    texts: Sequence[Text], conditions: Sequence[Condition], *, num_drafts: Mapping[str, int], seed: int = 0
) -> list[Effect]:
    """Effects of all conditions but the declared one, in the order given.

    A suspect that changed nothing at all (a window longer than every text) cannot win, so it does not count among those
    that are judged together.

    Args:
        texts: at least one, each with all conditions and at least one anchor.
        conditions: as tried; `DECLARED` may be among them.
        num_drafts: K of every condition.
        seed: of drawn sign patterns.
    """
    changed = [condition for condition in conditions if condition.name != DECLARED.name]
    units = list(dict.fromkeys(text.conversation for text in texts))
    anchors = _by_unit(texts, units, lambda text: len(text.accepted[DECLARED.name]))
    widths = [_width(condition, num_drafts) for condition in changed]

    def sums(names: Sequence[str], cut: Sequence[int]) -> FloatArray:
        rows = [_sums(texts, units, name, width) for name, width in zip(names, cut, strict=True)]
        return np.array(rows).reshape(len(names), len(units))

    names, declared = [condition.name for condition in changed], [DECLARED.name] * len(changed)
    under, plain = sums(names, widths), sums(declared, widths)
    differences = under - plain
    first = sums(names, [1] * len(names)) - sums(declared, [1] * len(names))
    idle = [_is_idle(texts, condition, width) for condition, width in zip(changed, widths, strict=True)]
    judged = judge_differences(differences, anchors, level=LEVEL, seed=seed)
    firsts = judge_differences(first, anchors, level=LEVEL, seed=seed)
    asked = [i for i, condition in enumerate(changed) if condition.is_suspect and not idle[i]]
    joint: dict[int, float] = {}
    if asked:
        together = judge_differences(differences[asked], anchors, level=LEVEL, seed=seed)
        joint = dict(zip(asked, together.joint_p_values.tolist(), strict=True))
    total = float(anchors.sum())
    return [
        Effect(
            condition=condition,
            accepted=float(under[i].sum()) / total,
            declared=float(plain[i].sum()) / total,
            low=_finite(judged.low[i]),
            high=_finite(judged.high[i]),
            joint_p=joint.get(i),
            wins=int((differences[i] > 0).sum()),
            losses=int((differences[i] < 0).sum()),
            is_idle=idle[i],
            first_low=_finite(firsts.low[i]),
            first_high=_finite(firsts.high[i]),
        )
        for i, condition in enumerate(changed)
    ]


def _width(condition: Condition, num_drafts: Mapping[str, int]) -> int:
    """Drafts that count on both sides."""
    if condition.counts == "first":
        return 1
    both = num_drafts[condition.name], num_drafts[DECLARED.name]
    return max(both) if condition.counts == "uncut" else min(both)


def _is_idle(texts: Sequence[Text], condition: Condition, width: int) -> bool:
    return all(
        np.array_equal(
            np.minimum(text.accepted[condition.name], width), np.minimum(text.accepted[DECLARED.name], width)
        )
        for text in texts
    )


def _sums(texts: Sequence[Text], units: Sequence[str], name: str, width: int) -> FloatArray:
    return _by_unit(texts, units, lambda text: int(np.minimum(text.accepted[name], width).sum()))


def _by_unit(texts: Sequence[Text], units: Sequence[str], count: Callable[[Text], int]) -> FloatArray:
    totals = dict.fromkeys(units, 0)
    for text in texts:
        totals[text.conversation] += count(text)
    return np.array(list(totals.values()), dtype=np.float64)


def _finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None
