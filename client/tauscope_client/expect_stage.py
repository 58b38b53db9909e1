"""What only sampled references need: the acceptances that the drafter service computes, asked for and kept."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tauscope_client.drafter import DrafterClient
from tauscope_client.expecting import Sampling, alphas_of, ask_acceptance
from tauscope_client.failures import Failure, concerns_one_prompt
from tauscope_client.progress import Progress
from tauscope_client.references.record import Reference
from tauscope_client.references.retries import Retries
from tauscope_client.runs.acceptance_files import Acceptances, acceptances_path, has_acceptances, write_acceptances
from tauscope_client.target import TargetClient
from tauscope_client.workers import run_all
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode, InternalError, TauscopeError
from tauscope_wire.messages import DrafterCard

__all__ = ["STAGE", "keep_acceptances"]

STAGE = "expectations"


def keep_acceptances(
    run: Path,
    references: Sequence[Reference],
    cards: Sequence[DrafterCard],
    *,
    target: TargetClient,
    drafter: DrafterClient,
    progress: Progress,
    retries: Retries | None,
    dtype: WireDtype,
    concurrency: int,
) -> list[Failure]:
    """Ask for the acceptances of all sampled references that are not there yet, and keep them in the run.

    Returns:
        The turns that failed for reasons of their own.

    Raises:
        TauscopeError: a failure that concerns the whole run, such as a drafter service without the target's head.
    """
    wanted = [one for one in references if one.temperature > 0 and len(one.response_ids) > 1]
    if not wanted:
        return []
    missing = {one.id: [card for card in cards if not has_acceptances(run, card.name, one)] for one in wanted}
    total = len(wanted) * len(cards)
    progress.start(STAGE, total, done=total - sum(map(len, missing.values())))
    failures: list[Failure] = []
    ask = partial(
        ask_acceptance,
        target=target,
        drafter=drafter,
        retries=retries if retries is not None else Retries(),
        dtype=dtype,
    )

    def one(reference: Reference) -> None:
        sampling = Sampling(temperature=reference.temperature, top_k=reference.top_k, top_p=reference.top_p)
        for card in missing[reference.id]:
            try:
                answer = ask(reference, card, cards, sampling)
                if len(answer.anchors) != len(reference.response_ids) - 1:
                    raise InternalError(
                        f"drafter {card.name!r} answered {len(answer.anchors)} anchors for "
                        f"{len(reference.response_ids) - 1}",
                        ErrorCode.UNEXPECTED_ANSWER,
                    )
            except TauscopeError as error:
                if error.code is ErrorCode.MODE_CANNOT or not concerns_one_prompt(error):
                    raise
                failures.append(Failure.of(reference.id, f"expect {card.name}", error))
                progress.note(f"{reference.id}: {error.message}")
                return
            found = Acceptances(
                sampled=alphas_of(answer.sampled),
                greedy=alphas_of(answer.greedy),
                facts={
                    "turn_id": reference.id,
                    "prompt_sha256": reference.prompt_sha256,
                    "drafter_sha256": card.sha256,
                    "sampling": vars(sampling),
                    "warnings": sorted(set(answer.drafter.warnings)),
                },
            )
            write_acceptances(acceptances_path(run, card.name, reference.id), found)
            progress.advance(STAGE)

    run_all(one, wanted, concurrency=concurrency)
    order = {reference.id: index for index, reference in enumerate(references)}
    return sorted(failures, key=lambda failure: order[failure.id])
