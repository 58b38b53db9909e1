"""At which place of its draft row each true token stands: the one array from which chain, streaks and walks follow."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tauscope_client.metrics.trace import Trace

__all__ = ["NOT_RANKED", "LabelRanks", "label_ranks", "rank_histogram", "streaks", "tie_bounds"]

# Larger than any number of candidates a service returns, so that `rank < k` is false for every k.
NOT_RANKED = np.iinfo(np.int16).max


class LabelRanks(NamedTuple):
    """The labels of a trace and their places.

    Attributes:
        labels: int32 [A, K], the token at anchor + 1 + j, or -1 where neither response nor tail reaches that far.
        ranks: int16 [A, K], place of the label in its row from 0 (best), `NOT_RANKED` when not among the kept ones
            or when there is no label.
    """

    labels: NDArray[np.int32]
    ranks: NDArray[np.int16]


def label_ranks(trace: Trace) -> LabelRanks:
    """Find every label in its row.

    Rows are ranked by logit descending, then id ascending, as stored. A drafter that re-scores its candidates may draft
    a token that is not the first of its row: then the draft takes the first place and the others keep their order, so
    that place 0 is always the draft.
    """
    num_drafts = trace.num_drafts
    at = trace.anchors[:, None] + 1 + np.arange(num_drafts, dtype=np.int32)
    full = trace.full_ids
    known = at < full.shape[0]
    labels = np.where(known, full[np.minimum(at, full.shape[0] - 1)], np.int32(-1))
    ranks = _places(trace, labels)
    if trace.anchors.size and (trace.draft_ids != trace.top_ids[..., 0]).any():
        draft_places = _places(trace, trace.draft_ids)
        ranks = np.where((ranks != NOT_RANKED) & (draft_places > ranks), ranks + np.int16(1), ranks).astype(np.int16)
        ranks[trace.draft_ids == labels] = 0
    ranks[~known] = NOT_RANKED
    return LabelRanks(labels=labels, ranks=ranks)


def _places(trace: Trace, wanted: NDArray[np.int32]) -> NDArray[np.int16]:
    places = np.full(wanted.shape, NOT_RANKED, dtype=np.int16)
    for place in reversed(range(trace.top_k)):
        places[trace.top_ids[..., place] == wanted] = place
    return places


def streaks(ranks: NDArray[np.int16], *, k: int = 1, width: int | None = None) -> NDArray[np.int64]:
    """Length of the longest prefix of each row whose labels are among the k best, int64 [A], at most `width`."""
    hit = ranks[:, :width] < k
    if hit.shape[0] == 0:
        return np.zeros(0, dtype=np.int64)
    longest: NDArray[np.int64] = np.where(hit.all(axis=1), hit.shape[1], hit.argmin(axis=1)).astype(np.int64)
    return longest


def rank_histogram(ranks: NDArray[np.int16], in_text: NDArray[np.bool_], *, top_k: int) -> NDArray[np.int64]:
    """Count labels by place: int64 [K, top_k + 1]; the last column is "not among the top_k".

    Args:
        ranks: [A, K] of `label_ranks`.
        in_text: [A, K], where the label is part of the text; others are not counted.
        top_k: candidates kept of each row.
    """
    num_drafts = ranks.shape[1]
    place = np.minimum(ranks, top_k).astype(np.int64) + np.arange(num_drafts) * (top_k + 1)
    counts = np.bincount(place[in_text], minlength=num_drafts * (top_k + 1))
    return counts.reshape(num_drafts, top_k + 1)


def tie_bounds(trace: Trace, found: LabelRanks) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Optimistic and pessimistic 1-based rank of each label, int16 [A, K] each, `NOT_RANKED` where it is not kept.

    Optimistic is one more than the number of strictly better candidates, pessimistic the number of candidates at least
    as good; the two differ exactly where log-probabilities tie. The pessimistic rank sees only the kept candidates.
    """
    match = (trace.top_ids == found.labels[..., None]) & (found.labels[..., None] >= 0)
    kept = match.any(axis=-1)
    own = np.where(match, trace.top_logprobs, -np.inf).max(axis=-1)[..., None]
    best = ((trace.top_logprobs > own).sum(axis=-1) + 1).astype(np.int16)
    worst = (trace.top_logprobs >= own).sum(axis=-1).astype(np.int16)
    none = np.int16(NOT_RANKED)
    return np.where(kept, best, none), np.where(kept, worst, none)
