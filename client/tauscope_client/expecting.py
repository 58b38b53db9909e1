"""What sampling would accept: expectations along the frozen texts of a run, from both distributions.

The drafter service computes the acceptance of every draft position, because both distributions are at hand there; the
walk over those chances is computed here. It is an expectation along one given text, never a count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_client.drafter import DrafterClient
from tauscope_client.drafting import MAX_RECOMPUTES
from tauscope_client.metrics import Interval, Ratio
from tauscope_client.metrics.intervals import ratio_interval
from tauscope_client.metrics.sampling import expected_walk
from tauscope_client.pairing import check_run
from tauscope_client.progress import Progress
from tauscope_client.references.record import Reference
from tauscope_client.references.retries import Retries
from tauscope_client.runs.loading import Run
from tauscope_client.target import TargetClient
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode, GoneError, InternalError
from tauscope_wire.messages import AcceptanceRequest, DrafterCard, HiddenByHandle, HiddenRequest
from tauscope_wire.tensors import AcceptanceAnswer

__all__ = ["Expectation", "Sampling", "alphas_of", "ask_acceptance", "expect_acceptance"]

STAGE = "expectations"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling settings, the same for target and drafter.

    Attributes:
        temperature: above 0.
        top_k: 0 for all.
        top_p: 1 for all.
    """

    temperature: float
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class Expectation:
    """Expected tau of one drafter.

    Attributes:
        drafter: its name.
        sampled: when drafts are sampled from the drafter: the chance of each is sum min(p, q).
        greedy: when the drafter drafts its best token: the chance of each is p of that token.
        warnings: what the service said.
    """

    drafter: str
    sampled: Interval
    greedy: Interval
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; says in so many words that it is an expectation."""
        return {
            "expected_tau_sampled": self.sampled.to_dict(),
            "expected_tau_greedy": self.greedy.to_dict(),
            "is_expectation": True,
            "warnings": list(self.warnings),
        }


def expect_acceptance(
    run: Run,
    names: Sequence[str],
    sampling: Sampling,
    *,
    target: TargetClient,
    drafter: DrafterClient,
    progress: Progress,
    retries: Retries | None = None,
) -> list[Expectation]:
    """Compute the expectations of some drafters over all finished turns of a run.

    Raises:
        MismatchError: the target service or a drafter is another one than the run was made with.
        TauscopeError: a service's refusal.
    """
    retries = retries if retries is not None else Retries()
    cards = check_run(run, names, target=target, drafter=drafter)
    turns = [turn_id for turn_id in run.turn_ids if len(run.references[turn_id].response_ids) > 1]
    progress.start(STAGE, len(turns) * len(cards))
    ratios: dict[str, tuple[list[Ratio], list[Ratio]]] = {card.name: ([], []) for card in cards}
    warnings: dict[str, set[str]] = {card.name: set() for card in cards}
    for turn_id in turns:
        reference = run.references[turn_id]
        for card in cards:
            answer = ask_acceptance(reference, card, cards, sampling, target=target, drafter=drafter, retries=retries)
            warnings[card.name].update(answer.drafter.warnings)
            trace = run.trace(card.name, turn_id)
            if not np.array_equal(answer.anchors, trace.anchors) or answer.drafter.drafts != trace.num_drafts:
                raise InternalError(
                    f"drafter {card.name!r} answered {answer.sampled.shape} chances for {trace.draft_ids.shape} drafts",
                    ErrorCode.UNEXPECTED_ANSWER,
                )
            for kept, rows in zip(ratios[card.name], (answer.sampled, answer.greedy), strict=True):
                kept.append(expected_walk(trace, alphas_of(rows)))
            progress.advance(STAGE)
    return [
        Expectation(
            card.name,
            ratio_interval(ratios[card.name][0], bounds=(1.0, card.drafts + 1.0)),
            ratio_interval(ratios[card.name][1], bounds=(1.0, card.drafts + 1.0)),
            tuple(sorted(warnings[card.name])),
        )
        for card in cards
    ]


def ask_acceptance(
    reference: Reference,
    card: DrafterCard,
    cards: Sequence[DrafterCard],
    sampling: Sampling,
    *,
    target: TargetClient,
    drafter: DrafterClient,
    retries: Retries,
    dtype: WireDtype = "bfloat16",
) -> AcceptanceAnswer:
    """One answer; states that vanished are computed again (a stored handle costs no forward).

    Raises:
        GoneError: the states vanish faster than they can be used.
        TauscopeError: a service's refusal.
    """
    taps = sorted({tap for one in cards for tap in one.taps})
    hidden = HiddenRequest(token_ids=reference.token_ids(), layers=taps, final_norm=True, dtype=dtype)
    for _ in range(MAX_RECOMPUTES):
        receipt = retries.run(lambda: target.hidden_handle(hidden))
        request = AcceptanceRequest(
            drafter=card.name,
            hidden=HiddenByHandle(handle=receipt.handle),
            token_ids=reference.token_ids(),
            response_start=len(reference.prompt_ids),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )
        try:
            return retries.run(partial(drafter.expected_acceptance, request))
        except GoneError:
            continue
    raise GoneError(f"the hidden states of {reference.id!r} vanish before the drafter can read them")


def alphas_of(rates: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Acceptances [A, K]; what lies past the end of the text is 0: there is nothing to accept."""
    return np.nan_to_num(rates.astype(np.float64))
