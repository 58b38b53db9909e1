"""Everything that one prompt contributes: its rounds, and the numerator and denominator of every pooled statistic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tauscope_client.metrics.definitions import TOP_KS
from tauscope_client.metrics.positions import PositionCounts, count_positions
from tauscope_client.metrics.ranks import label_ranks, rank_histogram, streaks
from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.walk import Clip, Walk, walk, walk_by_streaks

__all__ = ["PromptResult", "Ratio", "measure"]


class Ratio(NamedTuple):
    """Numerator and denominator of a statistic; ratios of prompts pool by adding both."""

    numerator: float
    denominator: float

    @property
    def value(self) -> float | None:
        """The quotient, None when nothing was counted."""
        return self.numerator / self.denominator if self.denominator else None


@dataclass(frozen=True, slots=True, eq=False)
class PromptResult:
    """One drafter on one prompt, measured.

    Attributes:
        prompt_id: the prompt.
        tags: its strata.
        prompt_tokens: tokens before the response.
        response_tokens: response tokens up to the end of the text.
        walk: the rounds of the serving walk: anchors, accepted, emitted, drafted, in order.
        ratios: statistic name -> numerator and denominator. A statistic that this prompt cannot determine (unclipped
            counts without a tail, agreement without the target's argmax, k above the kept candidates) is absent.
        by_width: ratio of tau when only the first w drafts are verified, w = 1..K.
        positions_walk: per-position counts over the anchors the walk visits.
        positions_all: the same over all response anchors.
        rank_counts: int64 [K, k + 1], labels within the text by place; the last column is "not among the kept".
        weighted_rounds: along sampled text the rounds that sampling would run: anchor, chance of a round there, tokens
            it emits on average. Empty along greedy text, where rounds are counted.
    """

    prompt_id: str
    tags: Mapping[str, str]
    prompt_tokens: int
    response_tokens: int
    walk: Walk
    ratios: Mapping[str, Ratio]
    by_width: tuple[Ratio, ...]
    positions_walk: PositionCounts
    positions_all: PositionCounts
    rank_counts: NDArray[np.int64]
    weighted_rounds: tuple[tuple[int, float, float], ...] = ()

    @property
    def is_empty(self) -> bool:
        """The text was over after its first token: no rounds."""
        return self.walk.num_rounds == 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `accepted`, `emitted` and `drafted` list every round in order."""
        return {
            "prompt_id": self.prompt_id,
            "tags": dict(self.tags),
            "prompt_tokens": self.prompt_tokens,
            "response_tokens": self.response_tokens,
            "anchors": list(self.walk.anchors),
            "accepted": list(self.walk.accepted),
            "emitted": list(self.walk.emitted),
            "drafted": list(self.walk.drafted),
            "values": {name: ratio.value for name, ratio in self.ratios.items()},
        }


_CLIPS: dict[str, Clip] = {"tau_unclipped": "none", "tau_stop_clipped": "stop"}


def _emitted(rounds: Walk) -> Ratio:
    return Ratio(sum(rounds.emitted), rounds.num_rounds)


def measure(trace: Trace) -> PromptResult:
    """Measure one drafter on one prompt.

    Raises:
        ValueError: the walk visits a position that is not among the anchors.
    """
    found = label_ranks(trace)
    end, num_drafts = trace.num_response_tokens, trace.num_drafts
    index = trace.anchors.astype(np.int64) - trace.response_start
    within = index < end - 1
    remaining = end - 1 - index[within]
    ranks = found.ranks[within]
    in_text = np.arange(1, num_drafts + 1) <= remaining[:, None]
    chain = streaks(found.ranks)
    rounds = walk_by_streaks(trace, chain, width=num_drafts)

    accepted_all = np.minimum(chain[within], remaining)
    ratios = {
        "tau": _emitted(rounds),
        "tau_prompt_mean": Ratio(0, 0) if rounds.tau is None else Ratio(rounds.tau, 1),
        "tau_all_anchors": Ratio(int(np.minimum(chain[within] + 1, remaining).sum()), int(within.sum())),
        "accept_rate": Ratio(sum(rounds.accepted), sum(rounds.drafted)),
    }
    for name, clip in _CLIPS.items():
        entries = walk_by_streaks(trace, chain, width=num_drafts, clip=clip)
        if entries.is_determined:
            ratios[name] = _emitted(entries)
    for k in TOP_KS:
        if k <= trace.top_k:
            longest = chain if k == 1 else streaks(found.ranks, k=k)
            ratios[f"topk_walk_tau_{k}"] = _emitted(walk_by_streaks(trace, longest, width=num_drafts))
            ratios[f"topk_streak_{k}"] = Ratio(int(np.minimum(longest[within], remaining).sum()), int(within.sum()))
    if trace.target_argmax is not None:
        own = trace.token_ids[trace.response_start :][:end]
        ratios["agreement"] = Ratio(int((own == trace.target_argmax[:end]).sum()), end)

    visited = np.searchsorted(trace.anchors[within], np.asarray(rounds.anchors, dtype=np.int32))
    right = ranks == 0
    room = num_drafts if trace.length_limit is None else trace.length_limit - 1 - index[within]
    proposed_all = np.minimum(np.full_like(remaining, num_drafts), room)
    all_anchors = count_positions(accepted_all, proposed_all, right, in_text)
    return PromptResult(
        prompt_id=trace.prompt_id,
        tags=trace.tags,
        prompt_tokens=trace.response_start,
        response_tokens=end,
        walk=rounds,
        ratios=ratios,
        by_width=tuple(_emitted(walk(trace, found, width=width)) for width in range(1, num_drafts + 1)),
        positions_walk=count_positions(
            np.asarray(rounds.accepted, dtype=np.int64),
            np.asarray(rounds.drafted, dtype=np.int64),
            right[visited],
            in_text[visited],
        ),
        positions_all=all_anchors,
        rank_counts=rank_histogram(ranks, in_text, top_k=trace.top_k),
    )
