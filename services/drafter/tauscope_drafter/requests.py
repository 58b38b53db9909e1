"""Checks of a `/draft_block` request against its drafter and the limits, before anything is fetched or queued."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tauscope_wire.errors import ErrorCode, RequestError, TooLargeError
from tauscope_wire.messages import DrafterCard, DraftRequest, Limits

BYTES_PER_RANK = 8  # int32 id and float32 log-prob
BYTES_PER_DRAFT = 4


def resolve_anchors(request: DraftRequest, limits: Limits) -> npt.NDArray[np.int32]:
    """Anchors of a request, ascending; empty for a response of one token.

    Raises:
        RequestError: an anchor outside of the sequence, or not ascending.
        TooLargeError: more anchors than `limits.max_anchors`.
    """
    length = len(request.token_ids)
    if request.response_start >= length:
        raise RequestError(
            f"response_start={request.response_start}: the sequence has {length} tokens (1..{length - 1})",
            ErrorCode.POSITION_OUT_OF_RANGE,
        )
    if request.anchors == "response":
        anchors: Sequence[int] = range(request.response_start, length - 1)
    else:
        anchors = request.anchors
        for index, (position, before) in enumerate(zip(anchors, [0, *anchors], strict=False)):
            if position <= before:
                raise RequestError(
                    f"anchors[{index}]={position}: positions ascend, and the one before is {before}",
                    ErrorCode.ANCHOR_OUT_OF_RANGE,
                )
        if anchors and anchors[-1] >= length:
            raise RequestError(
                f"anchors[{len(anchors) - 1}]={anchors[-1]}: the sequence has {length} tokens (1..{length - 1})",
                ErrorCode.ANCHOR_OUT_OF_RANGE,
            )
    if len(anchors) > limits.max_anchors:
        raise TooLargeError(
            f"{len(anchors)} anchors: at most {limits.max_anchors} a request; ask in several requests",
            details={"limit": "max_anchors", "value": len(anchors), "bound": limits.max_anchors},
        )
    return np.asarray(anchors, dtype=np.int32)


def check_limits(request: DraftRequest, card: DrafterCard, limits: Limits) -> None:
    """Bounds on tokens, top-k and ids.

    Raises:
        TooLargeError: over a limit.
        RequestError: a token id outside of the vocabulary.
    """
    for name, value, bound in (
        ("max_tokens", len(request.token_ids), limits.max_tokens),
        ("max_top_k", request.top_k, limits.max_top_k),
    ):
        if value > bound:
            code = ErrorCode.PROMPT_TOO_LONG if name == "max_tokens" else ErrorCode.LIMIT_EXCEEDED
            raise TooLargeError(
                f"{name.removeprefix('max_')}={value}: at most {bound} here",
                code,
                details={"limit": name, "value": value, "bound": bound},
            )
    highest = max(request.token_ids, default=-1)
    if highest >= card.vocab_size:
        index = request.token_ids.index(highest)
        raise RequestError(
            f"token_ids[{index}]={highest}: the vocabulary of drafter {card.name} has {card.vocab_size} tokens "
            f"(0..{card.vocab_size - 1})",
            ErrorCode.TOKEN_OUT_OF_RANGE,
            details={"index": index, "value": highest, "bound": card.vocab_size},
        )


def check_answer(num_anchors: int, card: DrafterCard, top_k: int, limits: Limits) -> None:
    """Bound on the size of the answer: an id and a log-prob for every rank of every row.

    Raises:
        TooLargeError: over `limits.max_answer_bytes`.
    """
    size = num_anchors * card.drafts * (top_k * BYTES_PER_RANK + BYTES_PER_DRAFT)
    if limits.max_answer_bytes and size > limits.max_answer_bytes:
        raise TooLargeError(
            f"{num_anchors} anchors x {card.drafts} drafts x top_k={top_k} make an answer of {size} bytes: at most "
            f"{limits.max_answer_bytes} here; ask for fewer anchors or a smaller top_k",
            ErrorCode.ANSWER_TOO_LARGE,
            details={"limit": "max_answer_bytes", "value": size, "bound": limits.max_answer_bytes},
        )


def deadline_of(request: DraftRequest, limits: Limits) -> float:
    """Seconds this request may take."""
    return min(request.deadline_s or limits.default_deadline_s, limits.max_deadline_s)
