"""Hidden states that stay at the target service, as the client knows them."""

from dataclasses import dataclass
from typing import Self

from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode, WireError
from tauscope_wire.messages import HiddenReceipt, ModelInfo
from tauscope_wire.tensors import HiddenAnswer, LogitsSummary

__all__ = ["KeptStates"]


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptStates:
    """Where the states are, and what came with them.

    Attributes:
        handle: name at the service.
        digest: of the states.
        dtype: of their elements.
        model: the target.
        logits: summary at every position, None when it was not asked for.
        timing_ms: where the service spent its time.
    """

    handle: str
    digest: str
    dtype: WireDtype
    model: ModelInfo
    logits: LogitsSummary | None
    timing_ms: dict[str, float]

    @classmethod
    def of_receipt(cls, receipt: HiddenReceipt) -> Self:
        """From the JSON answer, which has no summary."""
        return cls(
            handle=receipt.handle,
            digest=receipt.digest,
            dtype=receipt.dtype,
            model=receipt.model,
            logits=None,
            timing_ms=receipt.timing_ms,
        )

    @classmethod
    def of_answer(cls, answer: HiddenAnswer) -> Self:
        """From the tensor answer without states.

        Raises:
            WireError: no handle or no digest, which a service that keeps states has.
        """
        if answer.handle is None or answer.digest is None:
            raise WireError("the answer about kept states names no handle or no digest", ErrorCode.LABEL_MISMATCH)
        return cls(
            handle=answer.handle,
            digest=answer.digest,
            dtype=answer.dtype,
            model=answer.model,
            logits=answer.logits,
            timing_ms=answer.timing_ms,
        )
