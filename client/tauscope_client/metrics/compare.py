"""Two drafters on the same prompts: how much better, how sure, and on how many prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tauscope_client.metrics.intervals import Interval, difference_interval, minimum_detectable_difference
from tauscope_client.metrics.prompts import PromptResult, Ratio

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One statistic of two drafters, paired by prompt.

    Attributes:
        statistic: its name in `DEFINITIONS`.
        before: pooled value of the first drafter over the paired prompts.
        after: pooled value of the second.
        difference: after - before, with its interval.
        wins_before: prompts on which the first is better.
        wins_after: prompts on which the second is better.
        ties: prompts on which both are equal.
        minimum_detectable: the true difference that this many prompts would find four times in five.
    """

    statistic: str
    before: float | None
    after: float | None
    difference: Interval
    wins_before: int
    wins_after: int
    ties: int
    minimum_detectable: float | None

    @property
    def verdict(self) -> str:
        """In plain words, from the interval alone."""
        if self.difference.low is None or self.difference.high is None:
            return "cannot tell: too few prompts"
        if not self.difference.excludes_zero:
            return "no difference found"
        return "the second is better" if self.difference.low > 0 else "the first is better"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "statistic": self.statistic,
            "before": self.before,
            "after": self.after,
            "difference": self.difference.to_dict(),
            "wins_before": self.wins_before,
            "wins_after": self.wins_after,
            "ties": self.ties,
            "minimum_detectable": self.minimum_detectable,
            "verdict": self.verdict,
        }


def compare(
    before: Sequence[PromptResult],
    after: Sequence[PromptResult],
    *,
    statistics: Sequence[str] = ("tau",),
    level: float = 0.95,
    seed: int = 0,
    is_forced: bool = False,
) -> Mapping[str, Comparison]:
    """Compare two drafters on the prompts they share.

    Args:
        before: what the prompts contribute under the first drafter.
        after: the same under the second, in any order.
        statistics: names of ratios; a statistic that a prompt lacks on either side leaves that prompt out of it.
        level: nominal coverage of the intervals.
        seed: of the resampling.
        is_forced: compare the shared prompts even when the two sets or the lengths of their texts differ.

    Raises:
        ValueError: the prompts or their texts differ, and it was not forced; or no prompt is shared.
    """
    first = {prompt.prompt_id: prompt for prompt in before}
    second = {prompt.prompt_id: prompt for prompt in after}
    shared = [name for name in first if name in second]
    if not shared:
        raise ValueError("no prompt is shared: a comparison is paired by prompt")
    if not is_forced:
        _check_same(first, second)
    return {
        name: _compare(name, [(first[key], second[key]) for key in shared], level=level, seed=seed)
        for name in statistics
    }


def _check_same(first: Mapping[str, PromptResult], second: Mapping[str, PromptResult]) -> None:
    alone = sorted(set(first) ^ set(second))
    if alone:
        raise ValueError(
            f"{len(alone)} prompts have no partner (the first is {alone[0]!r}): compare runs over the same prompts"
        )
    for name, one in first.items():
        lengths = [(prompt.prompt_tokens, prompt.response_tokens) for prompt in (one, second[name])]
        if lengths[0] != lengths[1]:
            raise ValueError(
                f"prompt {name!r}: prompt and response have {lengths[0]} tokens in one and {lengths[1]} in the other: "
                "the references differ"
            )


def _compare(name: str, pairs: Sequence[tuple[PromptResult, PromptResult]], *, level: float, seed: int) -> Comparison:
    ratios = [(a.ratios[name], b.ratios[name]) for a, b in pairs if name in a.ratios and name in b.ratios]
    before, after = [a for a, _ in ratios], [b for _, b in ratios]
    difference = difference_interval(before, after, level=level, seed=seed)
    values = [(a.value, b.value) for a, b in ratios]
    known = [(a, b) for a, b in values if a is not None and b is not None]
    return Comparison(
        statistic=name,
        before=_pooled(before),
        after=_pooled(after),
        difference=difference,
        wins_before=sum(a > b for a, b in known),
        wins_after=sum(b > a for a, b in known),
        ties=sum(a == b for a, b in known),
        minimum_detectable=minimum_detectable_difference(difference),
    )


def _pooled(ratios: Sequence[Ratio]) -> float | None:
    return Ratio(sum(ratio.numerator for ratio in ratios), sum(ratio.denominator for ratio in ratios)).value
