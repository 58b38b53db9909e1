"""What the tensor answers hold once they are read: plain dataclasses over numpy arrays.

Arrays are owned by the answer and writable; `HiddenAnswer.states` is the caller's own array when one was given to the
reader.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tauscope_wire.dtypes import WireDtype
from tauscope_wire.layers import Plane
from tauscope_wire.messages import Answer, ModelInfo, Numerics

__all__ = ["AcceptanceAnswer", "DraftAnswer", "DrafterSummary", "HiddenAnswer", "LogitsSummary"]


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitsSummary:
    """The target's own distribution at n positions.

    Attributes:
        argmax_ids: int32 [n], the id of the largest logit (the smallest such id).
        top_ids: int32 [n, k], sorted by (logit descending, id ascending); k may be 0.
        top_logprobs: float32 [n, k], natural logarithms, in the order of `top_ids`.
        next_logprobs: float32 [m], log-prob of the token that follows in the request, for the first m of the n
            positions: m = n, or n - 1 when the last position is the end of the sequence. None when not asked for.
    """

    argmax_ids: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    next_logprobs: npt.NDArray[np.float32] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class HiddenAnswer:
    """Answer of `POST /hidden_states` and `GET /hidden_states/{handle}`.

    Attributes:
        request_id: the service's name for the request, as in its log.
        model: the target model.
        numerics: fingerprint of the arithmetic that made the states.
        requested: `convention` and `layers` of this request, echoed.
        planes: canonical names of the planes, in order.
        dtype: element type of `states`.
        token_ids: int32 [T], the whole sequence.
        positions: half-open range of positions that `states` covers.
        shape: (planes, positions, hidden), also when there is no data.
        handle: name under which the service keeps the states, or None.
        states: [planes, positions, hidden] bfloat16 (ml_dtypes) or float32; None when only a handle was asked for.
        digest: xxh3_128 hex over the row-major states, or None when the service did not compute it.
        logits: summary at the same positions, or None.
        timing_ms: where the service spent its time.
    """

    request_id: str
    model: ModelInfo
    numerics: Numerics
    requested: dict[str, Any]
    planes: tuple[Plane, ...]
    dtype: WireDtype
    token_ids: npt.NDArray[np.int32] = field(repr=False)  # a prompt; answers may end up in logs
    positions: tuple[int, int]
    shape: tuple[int, int, int]
    handle: str | None
    states: npt.NDArray[Any] | None
    digest: str | None
    logits: LogitsSummary | None
    timing_ms: dict[str, float]

    def plane(self, name: Plane) -> npt.NDArray[Any]:
        """The states of one plane, [positions, hidden], a view.

        Raises:
            KeyError: no such plane, or an answer without data.
        """
        if self.states is None or name not in self.planes:
            held = "no data (only a handle was asked for)" if self.states is None else f"planes {list(self.planes)}"
            raise KeyError(f"plane {name!r}: the answer holds {held}")
        view: npt.NDArray[Any] = self.states[self.planes.index(name)]
        return view


class DrafterSummary(Answer):
    """The drafter that made an answer, and what is doubtful about the pairing (`warnings`).

    `conditions` holds what deviated from the drafter's declaration (`DraftConditions.in_force`); it is written only
    when something did. `layout`, `drafts` and `taps` are those in force.
    """

    name: str
    family: str
    block_size: int
    layout: Literal["fill-in", "anchor-first", "sequential"]
    drafts: int
    taps: list[int]
    sha256: str
    warnings: list[str] = Field(default_factory=list)
    conditions: dict[str, Any] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _without_empty_conditions(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = plain(self)
        if not self.conditions:
            fields.pop("conditions", None)
        return fields


@dataclass(frozen=True, eq=False, kw_only=True)
class DraftAnswer:
    """Answer of `POST /draft_block`: one row of K drafts per anchor.

    Attributes:
        drafter: who drafted.
        numerics: fingerprint of the drafter service.
        anchors: int32 [A], ascending positions.
        token_ids: int32 [A, K], the drafts; column j is the draft for position anchor + 1 + j.
        top_ids: int32 [A, K, k], sorted by (logit descending, id ascending).
        top_logprobs: float32 [A, K, k].
        timing_ms: where the service spent its time.
    """

    drafter: DrafterSummary
    numerics: Numerics
    anchors: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32] = field(repr=False)
    top_ids: npt.NDArray[np.int32] = field(repr=False)
    top_logprobs: npt.NDArray[np.float32]
    timing_ms: dict[str, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class AcceptanceAnswer:
    """Answer of `POST /expected_acceptance`: expectations along a given text, not a count of what a server accepted.

    Attributes:
        drafter: whose drafts; its warnings are for the reader of the expectations too.
        numerics: fingerprint of the drafter service.
        anchors: int32 [A], ascending positions.
        sampled: float32 [A, K], the probability that a draft sampled from the drafter for position anchor + 1 + j is
            accepted, the sum over x of min(p(x), q(x)); NaN past the end of the text.
        greedy: float32 [A, K], the same for the drafter's best token x*, p(x*).
        timing_ms: where the service spent its time.
    """

    drafter: DrafterSummary
    numerics: Numerics
    anchors: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.float32]
    greedy: npt.NDArray[np.float32]
    timing_ms: dict[str, float]
