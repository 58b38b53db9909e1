"""One drafter on one prompt: what it drafted at every anchor, and the text it should have drafted.

Owns the shapes and the end of the text. Does not own any metric, and does not know where the arrays came from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Trace"]

IntArray = NDArray[np.int32]


def _frozen_ids(name: str, values: ArrayLike, *, ndim: int) -> IntArray:
    array = np.asarray(values)
    if array.size == 0 and array.ndim == ndim:
        array = array.astype(np.int32)  # an empty Python list is float64 to numpy
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {list(array.shape)}: expected {ndim} axes")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {array.dtype}: expected integers")
    view = array.astype(np.int32, copy=False).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """One drafter on one prompt. Arrays are kept as read-only views of what was passed, copied only to change dtype.

    Attributes:
        prompt_id: name of the prompt; the key by which drafters are paired.
        token_ids: int32 [T], prompt and response.
        response_start: position of the first response token, 1..T.
        anchors: int32 [A], strictly ascending positions; normally every one from `response_start` to T-2.
        draft_ids: int32 [A, K], the greedy draft; column j predicts the token at anchor + 1 + j.
        top_ids: int32 [A, K, k], the k best tokens of each row, by logit descending, then id ascending.
        top_logprobs: float32 [A, K, k], their log-probabilities over the whole vocabulary, non-increasing.
        stop_ids: token ids that end the text (inclusive).
        max_response_tokens: the length limit of the reference, or None when it had none.
        tail_ids: int32, how the target's own text goes on after the response ("past the end"); may be empty.
        target_argmax: int32 [T - response_start], the target's own choice for each response position, or None.
        tags: strata of the prompt: split, category, language, and so on.

    Raises:
        ValueError: a shape, dtype or range does not fit; the message names the field, the value and the bound.
    """

    prompt_id: str
    token_ids: IntArray
    response_start: int
    anchors: IntArray
    draft_ids: IntArray
    top_ids: IntArray
    top_logprobs: NDArray[np.float32]
    stop_ids: frozenset[int] = frozenset()
    max_response_tokens: int | None = None
    tail_ids: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    target_argmax: IntArray | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name, ndim in (("token_ids", 1), ("anchors", 1), ("draft_ids", 2), ("top_ids", 3), ("tail_ids", 1)):
            put(name, _frozen_ids(name, getattr(self, name), ndim=ndim))
        logprobs = np.asarray(self.top_logprobs).astype(np.float32, copy=False).view()
        logprobs.flags.writeable = False
        put("top_logprobs", logprobs)
        if self.target_argmax is not None:
            put("target_argmax", _frozen_ids("target_argmax", self.target_argmax, ndim=1))
        put("stop_ids", frozenset(self.stop_ids))
        put("tags", dict(self.tags))
        self._check_text()
        self._check_drafts()

    def _check_text(self) -> None:
        total = self.token_ids.shape[0]
        if not 1 <= self.response_start <= total:
            raise ValueError(
                f"response_start={self.response_start}: the prompt and response have {total} tokens, so 1..{total}"
            )
        for name, ids in (("token_ids", self.token_ids), ("tail_ids", self.tail_ids)):
            if ids.size and int(ids.min()) < 0:
                raise ValueError(f"{name} holds {int(ids.min())}: token ids are 0 or more")
        if self.max_response_tokens is not None and self.max_response_tokens < 1:
            raise ValueError(f"max_response_tokens={self.max_response_tokens}: at least 1, or None for no limit")
        expected = total - self.response_start
        if self.target_argmax is not None and self.target_argmax.shape[0] != expected:
            raise ValueError(
                f"target_argmax has {self.target_argmax.shape[0]} ids: one for each of the {expected} response tokens"
            )

    def _check_drafts(self) -> None:
        anchors, total = self.anchors, self.token_ids.shape[0]
        if anchors.size:
            if anchors.size > 1 and int(np.diff(anchors).min()) <= 0:
                raise ValueError("anchors are not strictly ascending")
            low, high = int(anchors[0]), int(anchors[-1])
            if low < self.response_start or high > total - 1:
                raise ValueError(f"anchors span {low}..{high}: allowed are {self.response_start}..{total - 1}")
        if self.draft_ids.shape[0] != anchors.shape[0] or self.draft_ids.shape[1] < 1:
            raise ValueError(
                f"draft_ids has shape {list(self.draft_ids.shape)}: expected [{anchors.shape[0]}, K] with K at least 1"
            )
        if self.top_ids.shape[:2] != self.draft_ids.shape or self.top_ids.shape[2] < 1:
            raise ValueError(
                f"top_ids has shape {list(self.top_ids.shape)}: expected {[*self.draft_ids.shape, 'k']}, k at least 1"
            )
        if self.top_logprobs.shape != self.top_ids.shape:
            raise ValueError(
                f"top_logprobs has shape {list(self.top_logprobs.shape)}: top_ids has {list(self.top_ids.shape)}"
            )
        if np.isnan(self.top_logprobs).any():
            raise ValueError("top_logprobs holds NaN: the drafter's answer is broken")
        if (self.top_logprobs[..., 1:] > self.top_logprobs[..., :-1]).any():
            raise ValueError("top_logprobs rise along a row: expected each row from best to worst")

    @property
    def num_drafts(self) -> int:
        """K, draft tokens in a block (the anchor not counted)."""
        return int(self.draft_ids.shape[1])

    @property
    def top_k(self) -> int:
        """k, candidates kept of each row."""
        return int(self.top_ids.shape[2])

    @cached_property
    def full_ids(self) -> IntArray:
        """int32, prompt, response and tail in one array: position p of the text, and beyond its end."""
        return np.concatenate([self.token_ids, self.tail_ids]) if self.tail_ids.size else self.token_ids

    @cached_property
    def first_stop(self) -> int | None:
        """Response index of the first stop id in response and tail, or None."""
        after = self.full_ids[self.response_start :]
        hits = np.flatnonzero(np.isin(after, list(self.stop_ids))) if self.stop_ids else np.zeros(0, dtype=np.intp)
        return int(hits[0]) if hits.size else None

    @cached_property
    def num_response_tokens(self) -> int:
        """Response tokens up to the end of the text: first stop id (inclusive), length limit, or the last token."""
        end = int(self.token_ids.shape[0]) - self.response_start
        if self.first_stop is not None:
            end = min(end, self.first_stop + 1)
        return end if self.max_response_tokens is None else min(end, self.max_response_tokens)

    @property
    def length_limit(self) -> int | None:
        """Response tokens after which the text is cut, None when only a stop id ends it.

        A text that ends without a stop id and without a recorded limit was cut by something: its length is the limit.
        """
        if self.max_response_tokens is None and self.first_stop != self.num_response_tokens - 1:
            return self.num_response_tokens
        return self.max_response_tokens

    @property
    def is_empty(self) -> bool:
        """The text is over after the prefill token (or has none): there is nothing to draft and no round."""
        return self.num_response_tokens <= 1
