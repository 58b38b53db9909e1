"""Drafts as a body of SPEC.md."""

import numpy as np
import numpy.typing as npt

from tauscope_drafter.contract import DraftResult
from tauscope_wire.body import Body
from tauscope_wire.messages import DraftConditions, DrafterCard, Numerics
from tauscope_wire.tensors import DrafterSummary
from tauscope_wire.writer import draft_body


def draft_answer(
    numerics: Numerics,
    card: DrafterCard,
    anchors: npt.NDArray[np.int32],
    result: DraftResult,
    conditions: DraftConditions | None,
) -> Body:
    """The body of `/draft_block`."""
    return draft_body(
        drafter=summary_of(card, result.warnings, conditions),
        numerics=numerics,
        anchors=anchors,
        token_ids=result.token_ids,
        top_ids=result.top_ids,
        top_logprobs=result.top_logprobs,
        timing_ms=result.timing_ms,
    )


def summary_of(card: DrafterCard, warnings: list[str], conditions: DraftConditions | None) -> DrafterSummary:
    """The drafter as an answer names it, with what the reader of this answer must know."""
    return DrafterSummary(
        name=card.name,
        family=card.family,
        block_size=card.block_size,
        layout=card.layout,
        drafts=card.drafts,
        taps=card.taps,
        sha256=card.sha256,
        warnings=warnings,
        conditions={} if conditions is None else conditions.in_force(),
    )
