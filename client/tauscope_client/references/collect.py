"""Gets the reference of every turn of every prompt: rendered by the target service, answered by the source, kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from tauscope_client.failures import Failure, concerns_one_prompt
from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptRecord
from tauscope_client.references.record import Reference, ids_sha256
from tauscope_client.references.sampling import GREEDY, TextSampling
from tauscope_client.references.source import ReferenceSource, Turn
from tauscope_client.target import TargetClient
from tauscope_client.workers import run_all
from tauscope_wire.errors import ErrorCode, MismatchError, TauscopeError, TooLargeError

__all__ = ["ReferencePlan", "collect_references"]

STAGE = "references"


@dataclass(frozen=True, kw_only=True)
class ReferencePlan:
    """How references are made.

    Attributes:
        max_new_tokens: length limit of every answer.
        tail_tokens: tokens wanted past the end, for the unclipped tau; a source that cannot gives none.
        template_kwargs: options of the chat template, e.g. {"enable_thinking": false}.
        max_turns: turns of a conversation that are evaluated; None means all.
        concurrency: prompts in flight; 1, because under load a few of a thousand greedy answers change.
        sampling: how the tokens of the answers are chosen; texts that are sampled have no tail.
    """

    max_new_tokens: int
    tail_tokens: int
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_turns: int | None = None
    concurrency: int = 1
    sampling: TextSampling = GREEDY

    def num_turns(self, record: PromptRecord) -> int:
        """Turns of a prompt that are evaluated."""
        turns = 1 + len(record.follow_ups)
        return turns if self.max_turns is None else min(turns, self.max_turns)

    def turn_ids(self, records: Sequence[PromptRecord]) -> list[str]:
        """Names of all turns that are evaluated, in the order of the prompts."""
        return [record.turn_id(turn) for record in records for turn in range(1, self.num_turns(record) + 1)]


def collect_references(
    records: Sequence[PromptRecord],
    plan: ReferencePlan,
    *,
    target: TargetClient,
    source: ReferenceSource,
    finished: Mapping[str, Reference],
    keep: Callable[[Reference], None],
    progress: Progress,
) -> tuple[dict[str, Reference], list[Failure]]:
    """Get all references that are not finished yet.

    Returns:
        Every reference by turn id, in the order of the prompts; and the prompts that failed for reasons of their own.

    Raises:
        TauscopeError: a failure that concerns the whole run (no server, no access, another model).
    """
    found: dict[str, Reference] = dict(finished)
    failures: list[Failure] = []
    lock = Lock()
    order = plan.turn_ids(records)
    progress.start(STAGE, len(order), done=len(set(order) & set(found)))

    def one(record: PromptRecord) -> None:
        answers: list[str] = []
        for turn in range(1, plan.num_turns(record) + 1):
            turn_id = record.turn_id(turn)
            reference = found.get(turn_id)
            try:
                if reference is None:
                    reference = _ask(record, turn, answers, plan, target=target, source=source)
                    keep(reference)
                    with lock:
                        found[turn_id] = reference
                    progress.advance(STAGE)
                if turn < plan.num_turns(record):
                    answers.append(target.detokenize(reference.response_ids, skip_special_tokens=True).text)
            except TauscopeError as error:
                if not concerns_one_prompt(error):
                    raise
                with lock:
                    failures.append(Failure.of(turn_id, "reference", error))
                progress.note(f"{turn_id}: {error.message}")
                return  # later turns would need this answer

    run_all(one, records, concurrency=plan.concurrency)
    failures.sort(key=lambda failure: order.index(failure.id))
    return {turn_id: found[turn_id] for turn_id in order if turn_id in found}, failures


def _ask(
    record: PromptRecord,
    turn: int,
    answers: Sequence[str],
    plan: ReferencePlan,
    *,
    target: TargetClient,
    source: ReferenceSource,
) -> Reference:
    kwargs = plan.template_kwargs
    rendered = target.tokenize(record.first_turn(kwargs) if turn == 1 else record.later_turn(answers, kwargs))
    prompt_ids = rendered.token_ids
    info = target.info()
    turn_id = record.turn_id(turn)
    if turn == 1 and record.prompt_ids is not None and list(record.prompt_ids) != prompt_ids:
        raise MismatchError(
            f"prompt {turn_id!r}: the target service renders it to {len(prompt_ids)} ids that are not the "
            f"{len(record.prompt_ids)} prompt_ids of the file: another tokenizer, chat template or template kwargs",
            ErrorCode.TARGET_MISMATCH,
        )
    if len(prompt_ids) >= info.limits.max_tokens:
        raise TooLargeError(
            f"prompt {turn_id!r} has {len(prompt_ids)} tokens; the target service takes {info.limits.max_tokens} "
            "for prompt and answer together: shorten it, or start the service with a larger --max-tokens",
            ErrorCode.PROMPT_TOO_LONG,
        )
    sampling = plan.sampling.for_turn(turn_id)
    completion = source.complete(
        Turn(
            id=turn_id,
            prompt_ids=prompt_ids,
            messages=None if record.messages is None else record.history(answers),
            text=record.text,
            template_kwargs=dict(kwargs),
            max_new_tokens=plan.max_new_tokens,
            tail_tokens=plan.tail_tokens if sampling.is_greedy else 0,
            stop_token_ids=info.model.stop_token_ids,
            sampling=sampling,
        )
    )
    seed = completion.seed if completion.seed is not None else sampling.seed
    return Reference(
        id=turn_id,
        conversation=record.id,
        turn=turn,
        split=record.split,
        tags=dict(record.tags) | ({"turn": str(turn)} if record.follow_ups else {}),
        prompt_ids=prompt_ids,
        prompt_sha256=ids_sha256(prompt_ids),
        response_ids=completion.response_ids,
        tail_ids=completion.tail_ids,
        finish_reason=completion.finish_reason,
        stop_token_ids=info.model.stop_token_ids,
        max_new_tokens=plan.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=None if sampling.is_greedy else seed,
        template_kwargs=dict(kwargs),
        source=source.name,
        engine=source.facts(),
        drifted=bool(completion.drift),
        drift=completion.drift,
        served=completion.served,
    )
