"""`/expected_acceptance` on the wire: the request as a draft, the rates as an answer. Knows no torch."""

import numpy as np
import numpy.typing as npt

from tauscope_drafter.contract import DraftResult
from tauscope_wire.messages import AcceptanceAnswer, AcceptanceRequest, DrafterCard, DraftRequest, Numerics

Rates = npt.NDArray[np.float32]


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
) -> AcceptanceAnswer:
    """Rates [A, K] with NaN past the end of the text as lists with None."""
    empty = np.zeros((0, card.drafts), np.float32)
    sampled, greedy = result.rates if result.rates is not None else (empty, empty)
    return AcceptanceAnswer(
        drafter=card.name,
        sha256=card.sha256,
        numerics=numerics,
        anchors=anchors.tolist(),
        sampled=_lists(sampled),
        greedy=_lists(greedy),
        expected_accepted_sampled=expected_accepted(sampled).tolist(),
        expected_accepted_greedy=expected_accepted(greedy).tolist(),
        warnings=["an expectation along the given text, not a count of accepted drafts", *result.warnings],
        timing_ms=result.timing_ms,
    )


def expected_accepted(rates: Rates) -> npt.NDArray[np.float64]:
    """[A]: sum over k of the product of the first k rates; places past the end of the text count as rejected."""
    accepted: npt.NDArray[np.float64] = np.nan_to_num(rates.astype(np.float64)).cumprod(-1).sum(-1)
    return accepted


def _lists(rates: Rates) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in rates]
