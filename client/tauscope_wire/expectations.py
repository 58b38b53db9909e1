"""What a caller asked for, in the form the reader compares an answer with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tauscope_wire.dtypes import WireDtype
from tauscope_wire.layers import FINAL_NORM, Plane
from tauscope_wire.messages import AcceptanceRequest, DraftRequest, HiddenRequest, LogitsRequest

__all__ = ["DraftExpectation", "HiddenExpectation"]


@dataclass(frozen=True, kw_only=True)
class HiddenExpectation:
    """Labels an answer with hidden states must carry; None means that anything goes.

    Attributes:
        planes: canonical planes in order.
        positions: half-open range, or `all` or `last` of the sequence in the answer.
        dtype: element type.
        token_ids: the whole sequence.
        data: whether states come with the answer.
        handle: whether a handle comes with the answer.
        logits: whether, and which, a summary comes: a request, or False for none.
    """

    planes: tuple[Plane, ...] | None = None
    positions: tuple[int, int] | Literal["all", "last"] | None = None
    dtype: WireDtype | None = None
    token_ids: Sequence[int] | None = None
    data: bool | None = None
    handle: bool | None = None
    logits: LogitsRequest | Literal[False] | None = None

    @classmethod
    def of_request(cls, request: HiddenRequest) -> "HiddenExpectation":
        """Everything that `request` fixes; token ids only when it was asked by ids."""
        shift = 0 if request.convention == "output" else 1
        planes: list[Plane] = [layer - shift for layer in request.layers]
        if request.final_norm:
            planes.append(FINAL_NORM)
        return cls(
            planes=tuple(planes),
            positions="all" if request.positions is None else request.positions,
            dtype=request.dtype,
            token_ids=request.token_ids,
            data=request.return_ != "handle",
            handle=request.return_ != "inline",
            logits=False if request.logits is None else request.logits,
        )


@dataclass(frozen=True, kw_only=True)
class DraftExpectation:
    """Labels an answer with drafts must carry; None means that anything goes."""

    drafter: str | None = None
    anchors: Sequence[int] | None = None
    top_k: int | None = None
    conditions: Mapping[str, Any] | None = None

    @classmethod
    def of_request(cls, request: DraftRequest) -> "DraftExpectation":
        """Everything that `request` fixes."""
        conditions = {} if request.conditions is None else request.conditions.in_force()
        return cls(drafter=request.drafter, anchors=_anchors(request), top_k=request.top_k, conditions=conditions)

    @classmethod
    def of_acceptance(cls, request: AcceptanceRequest) -> "DraftExpectation":
        """Everything that `request` fixes; expectations are always of the drafter as it was declared."""
        return cls(drafter=request.drafter, anchors=_anchors(request), conditions={})


def _anchors(request: DraftRequest | AcceptanceRequest) -> Sequence[int]:
    if isinstance(request.anchors, str):
        return range(request.response_start, len(request.token_ids) - 1)
    return request.anchors
