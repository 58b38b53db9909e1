"""`/expected_acceptance` on the wire: the request as a draft, the rates as an answer. Knows no torch."""

import numpy as np
import numpy.typing as npt

from tauscope_drafter.contract import DraftResult
from tauscope_drafter.draft_answers import summary_of
from tauscope_wire.body import Body
from tauscope_wire.messages import AcceptanceRequest, DrafterCard, DraftRequest, Numerics
from tauscope_wire.writer import acceptance_body


def draft_request_of(asked: AcceptanceRequest) -> DraftRequest:
    """The drafts whose rows are compared: previous tokens of sequential heads are those of the text."""
    return DraftRequest(
        drafter=asked.drafter,
        hidden=asked.hidden,
        token_ids=asked.token_ids,
        response_start=asked.response_start,
        anchors=asked.anchors,
        top_k=1,
        labels=True,
        deadline_s=asked.deadline_s,
    )


def acceptance_answer(
    card: DrafterCard, numerics: Numerics, anchors: npt.NDArray[np.int32], result: DraftResult
) -> Body:
    """The body of `/expected_acceptance`: rates [A, K]."""
    empty = np.zeros((0, card.drafts), np.float32)
    sampled, greedy = result.rates if result.rates is not None else (empty, empty)
    warnings = ["an expectation along the given text, not a count of accepted drafts", *result.warnings]
    return acceptance_body(
        drafter=summary_of(card, warnings, None),
        numerics=numerics,
        anchors=anchors,
        sampled=sampled,
        greedy=greedy,
        timing_ms=result.timing_ms,
    )
