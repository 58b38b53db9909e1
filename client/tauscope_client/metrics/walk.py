"""The serving walk: which anchors a speculative server would visit on this text, and what each round gives.

Because the reference is the target's own greedy text, every round's outcome is a comparison of drafts with that text:
no target is needed. The loop is that of z-lab/dflash `dflash/model.py` (`dflash_generate`): draft at the last committed
token, accept the longest matching prefix, add the target's own token, jump.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tauscope_client.metrics.ranks import LabelRanks, label_ranks, streaks
from tauscope_client.metrics.trace import Trace

__all__ = ["Clip", "Counts", "Walk", "count_round", "walk", "walk_by_streaks"]

Clip = Literal["none", "stop", "stop+length"]


@dataclass(frozen=True, slots=True)
class Walk:
    """The rounds of one response, in order.

    Attributes:
        anchors: position of each round's anchor.
        accepted: draft tokens accepted in each round, bonus not counted.
        emitted: tokens each round adds to the text.
        drafted: draft tokens that could be verified in each round: the width, less at the length limit.
        is_determined: False when a clip other than "stop+length" was asked and the known tokens end before the last
            round's outcome is clear; that round's counts are then lower bounds.
    """

    anchors: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    drafted: tuple[int, ...]
    is_determined: bool = True

    @property
    def num_rounds(self) -> int:
        """Rounds of the walk; none when the response is empty."""
        return len(self.anchors)

    @property
    def tau(self) -> float | None:
        """Mean emitted of this response, None when it has no rounds."""
        return sum(self.emitted) / len(self.emitted) if self.emitted else None


@dataclass(frozen=True, slots=True)
class Counts:
    """What one round gives."""

    accepted: int
    emitted: int
    is_determined: bool


def count_round(trace: Trace, index: int, streak: int, *, width: int, clip: Clip = "stop+length") -> Counts:
    """Count one round.

    Args:
        trace: the text and its end.
        index: response index of the anchor.
        streak: drafts that match the text and its tail from the anchor on, at most `width`.
        width: drafts that were verified.
        clip: where to cut. "stop+length": at the end of the text; "stop": at the first stop id only, as
            deepseek-ai/DeepSpec does; "none": nowhere, as vLLM's counters and z-lab/dflash of April 2026 do.
    """
    known = trace.full_ids.shape[0] - trace.response_start - 1 - index
    if clip == "stop+length":
        remaining = trace.num_response_tokens - 1 - index
        return Counts(min(streak, remaining), min(streak + 1, remaining), True)
    if clip == "stop" and trace.first_stop is not None:
        remaining = trace.first_stop - index
        if streak >= remaining:
            return Counts(remaining, remaining, True)
    return Counts(streak, streak + 1, streak == width or streak < known)


def walk(
    trace: Trace,
    found: LabelRanks | None = None,
    *,
    width: int | None = None,
    k: int = 1,
    clip: Clip = "stop+length",
) -> Walk:
    """Walk one response as a speculative server would.

    The walk starts at the first response token, which comes from prefill and is not counted, and jumps by the tokens a
    round adds. It ends with the text: at the first stop id (inclusive; no bonus follows a drafted stop) or at the
    length limit. A response that is over after its first token has no rounds. `clip` changes only what the last round
    counts, never which anchors are visited.

    Args:
        trace: one drafter on one prompt.
        found: `label_ranks(trace)` when the caller has it already.
        width: verify only the first `width` drafts of each block; None means all. (A server that also drafts a shorter
            block may draft slightly different tokens; this keeps the trained block.)
        k: a label among the k best of its row counts as accepted; 1 is the plain walk.
        clip: see `count_round`.

    Raises:
        ValueError: `width` or `k` out of range, or the walk visits a position that is not among the anchors.
    """
    width = trace.num_drafts if width is None else width
    if not 1 <= width <= trace.num_drafts:
        raise ValueError(f"width={width}: the drafter drafts {trace.num_drafts} tokens, so 1..{trace.num_drafts}")
    if not 1 <= k <= trace.top_k:
        raise ValueError(f"k={k}: the trace keeps {trace.top_k} candidates a row, so 1..{trace.top_k}; ask for more")
    found = label_ranks(trace) if found is None else found
    return walk_by_streaks(trace, streaks(found.ranks, k=k, width=width), width=width, clip=clip)


def walk_by_streaks(trace: Trace, streak: NDArray[np.int64], *, width: int, clip: Clip = "stop+length") -> Walk:
    """Walk with a given number of matching drafts at each anchor, int64 [A]: chains, top-k rows and trees alike.

    Raises:
        ValueError: the walk visits a position that is not among the anchors.
    """
    end, start = trace.num_response_tokens, trace.response_start
    limit = trace.length_limit
    is_dense = trace.anchors.size > 0 and int(trace.anchors[-1] - trace.anchors[0]) == trace.anchors.size - 1
    first = int(trace.anchors[0]) if trace.anchors.size else 0
    rows = None if is_dense else {int(position): row for row, position in enumerate(trace.anchors)}
    steps = streak.tolist()
    anchors, accepted, emitted, drafted = [], [], [], []
    index, is_determined = 0, True
    while index < end - 1:
        position = start + index
        row = position - first if rows is None else rows.get(position, -1)
        if not 0 <= row < len(steps):
            raise ValueError(
                f"prompt {trace.prompt_id!r}: the walk visits position {position}, which is not among the "
                f"{len(steps)} anchors: draft at every response position"
            )
        matched = steps[row]
        counts = count_round(trace, index, matched, width=width, clip=clip) if matched + 1 + index >= end - 1 else None
        anchors.append(position)
        accepted.append(matched if counts is None else counts.accepted)
        emitted.append(matched + 1 if counts is None else counts.emitted)
        drafted.append(width if limit is None else min(width, limit - 1 - index))
        if counts is not None:
            is_determined = counts.is_determined
        index += matched + 1
    return Walk(tuple(anchors), tuple(accepted), tuple(emitted), tuple(drafted), is_determined)
