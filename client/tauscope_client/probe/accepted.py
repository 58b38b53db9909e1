"""Accepted drafts at every response anchor, from drafts and text."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["accepted_at_anchors"]


def accepted_at_anchors(draft_ids: ArrayLike, token_ids: ArrayLike, anchors: ArrayLike) -> NDArray[np.int32]:
    """Longest prefix of each row of drafts that the text continues with.

    Args:
        draft_ids: [A, K]; column j is the draft for position anchor + 1 + j.
        token_ids: [T], prompt and response; drafts past the end count as rejected.
        anchors: [A], positions.

    Returns:
        int32 [A], each in 0..K.
    """
    drafts, text = np.asarray(draft_ids), np.asarray(token_ids)
    places = np.asarray(anchors)[:, None] + 1 + np.arange(drafts.shape[1])
    inside = places < len(text)
    labels = text[np.where(inside, places, 0)]
    hits = (drafts == labels) & inside
    accepted: NDArray[np.int32] = np.cumprod(hits, axis=1, dtype=np.int32).sum(axis=1, dtype=np.int32)
    return accepted
