"""One statistic by stratum: any tag of the prompts, length of the context, position in the answer."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

from tauscope_client.metrics.estimates import bounds_of
from tauscope_client.metrics.intervals import Interval, ratio_interval
from tauscope_client.metrics.prompts import PromptResult, Ratio

__all__ = ["ANSWER_EDGES", "CONTEXT_EDGES", "Stratum", "by_answer_position", "by_context_length", "by_tag"]

# Powers of two: a drafter's loss over length is a matter of scale. Buckets without rounds are not shown.
CONTEXT_EDGES = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
ANSWER_EDGES = (0, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

UNTAGGED = "(untagged)"


class Stratum(NamedTuple):
    """One statistic over a part of the data.

    Attributes:
        label: the tag's value, or the bucket "low-high" in tokens (high not included; the last is open).
        interval: the pooled statistic with its interval by prompt.
        num_counted: the denominator: rounds for tau, anchors or labels for other statistics.
    """

    label: str
    interval: Interval
    num_counted: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"label": self.label, "num_counted": self.num_counted, **self.interval.to_dict()}


def by_tag(
    prompts: Sequence[PromptResult], tag: str, *, statistic: str = "tau", level: float = 0.95, seed: int = 0
) -> tuple[Stratum, ...]:
    """A statistic for each value of a tag, in alphabetical order; prompts without the tag come last.

    A stratum in which some prompt with rounds lacks the statistic has no estimate.
    """
    groups: dict[str, list[PromptResult]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.tags.get(tag, UNTAGGED), []).append(prompt)
    strata = []
    for label in sorted(groups, key=lambda value: (value == UNTAGGED, value)):
        members = groups[label]
        ratios = [prompt.ratios[statistic] for prompt in members if statistic in prompt.ratios]
        if any(statistic not in prompt.ratios and not prompt.is_empty for prompt in members):
            ratios = []
        strata.append(_stratum(label, ratios, bounds=bounds_of(statistic), level=level, seed=seed))
    return tuple(strata)


def by_context_length(
    prompts: Sequence[PromptResult], edges: Sequence[int] = CONTEXT_EDGES, *, level: float = 0.95, seed: int = 0
) -> tuple[Stratum, ...]:
    """Tau by the context length of each round: the tokens before its anchor, prompt and answer together.

    Along sampled text the rounds are expected ones, see `PromptResult.weighted_rounds`.
    """
    return _by_round(prompts, edges, lambda prompt, anchor: anchor, level=level, seed=seed)


def by_answer_position(
    prompts: Sequence[PromptResult], edges: Sequence[int] = ANSWER_EDGES, *, level: float = 0.95, seed: int = 0
) -> tuple[Stratum, ...]:
    """Tau by the position of each round's anchor in the answer, from 0; rounds as in `by_context_length`."""
    return _by_round(prompts, edges, lambda prompt, anchor: anchor - prompt.prompt_tokens, level=level, seed=seed)


def _by_round(
    prompts: Sequence[PromptResult],
    edges: Sequence[int],
    place: Callable[[PromptResult, int], int],
    *,
    level: float,
    seed: int,
) -> tuple[Stratum, ...]:
    if not edges or edges[0] != 0 or list(edges) != sorted(set(edges)):
        raise ValueError(f"edges={list(edges)}: expected ascending numbers of tokens that start at 0")
    buckets: dict[int, dict[str, Ratio]] = {}
    for prompt in prompts:
        for anchor, chance, emitted in _rounds(prompt):
            bucket = buckets.setdefault(bisect_right(edges, place(prompt, anchor)) - 1, {})
            so_far = bucket.get(prompt.prompt_id, Ratio(0, 0))
            bucket[prompt.prompt_id] = Ratio(so_far.numerator + chance * emitted, so_far.denominator + chance)
    return tuple(
        _stratum(_label(edges, at), list(buckets[at].values()), bounds=(1.0, inf), level=level, seed=seed)
        for at in sorted(buckets)
    )


def _rounds(prompt: PromptResult) -> Iterable[tuple[int, float, float]]:
    """Anchor, chance and emitted tokens of each round; rounds of a walk are certain."""
    if prompt.weighted_rounds:
        return prompt.weighted_rounds
    return ((anchor, 1, emitted) for anchor, emitted in zip(prompt.walk.anchors, prompt.walk.emitted, strict=True))


def _label(edges: Sequence[int], at: int) -> str:
    return f"{edges[at]}+" if at + 1 == len(edges) else f"{edges[at]}-{edges[at + 1]}"


def _stratum(label: str, ratios: Sequence[Ratio], *, bounds: tuple[float, float], level: float, seed: int) -> Stratum:
    interval = ratio_interval(ratios, level=level, seed=seed, bounds=bounds)
    return Stratum(label, interval, sum(ratio.denominator for ratio in ratios))
