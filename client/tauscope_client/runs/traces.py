"""From the files of a run to the arrays that the metrics measure."""

from pathlib import Path

import numpy as np

from tauscope_client.metrics import Trace
from tauscope_client.references.record import Reference
from tauscope_client.runs.conversations import CONVERSATION
from tauscope_client.runs.draft_files import Drafts, TargetView, read_drafts, read_target
from tauscope_wire.errors import ErrorCode, InternalError, RequestError

__all__ = ["trace_of", "trace_of_files"]


def trace_of_files(reference: Reference, drafts_path: Path, target_path: Path) -> Trace:
    """Read the trace of one drafter on one reference.

    Raises:
        RequestError: a file is damaged or belongs to another text.
        InternalError: the drafts break the order that the service promises.
    """
    drafts = read_drafts(drafts_path)
    view = read_target(target_path) if target_path.exists() else None
    for path, facts in ((drafts_path, drafts.facts), (target_path, view.facts if view else drafts.facts)):
        if (facts.get("turn_id"), facts.get("prompt_sha256")) != (reference.id, reference.prompt_sha256):
            raise RequestError(
                f"{path}: belongs to {facts.get('turn_id')!r} with another prompt, not to {reference.id!r}; "
                "delete the file and run again"
            )
    return trace_of(reference, drafts, view)


def trace_of(reference: Reference, drafts: Drafts, view: TargetView | None) -> Trace:
    """Join a reference with drafts on it.

    Raises:
        InternalError: the drafts break the order that the service promises.
    """
    # A text that ended for a reason of the server's own was not cut at our limit.
    is_at_limit = reference.finish_reason == "length" and len(reference.response_ids) == reference.max_new_tokens
    limit = reference.max_new_tokens if reference.finish_reason == "stop" or is_at_limit else None
    try:
        return Trace(
            prompt_id=reference.id,
            token_ids=np.asarray(reference.token_ids(), dtype=np.int32),
            response_start=len(reference.prompt_ids),
            anchors=drafts.anchors,
            draft_ids=drafts.token_ids,
            top_ids=drafts.top_ids,
            top_logprobs=drafts.top_logprobs,
            stop_ids=frozenset(reference.stop_token_ids),
            max_response_tokens=limit,
            tail_ids=np.asarray(reference.tail_ids, dtype=np.int32),
            target_argmax=None if view is None else view.argmax_ids,
            tags={"split": reference.split, **reference.tags, **_conversation(reference)},
        )
    except ValueError as error:
        raise InternalError(
            f"the drafts of {drafts.facts.get('drafter')!r} on {reference.id!r} are broken: {error}",
            ErrorCode.UNEXPECTED_ANSWER,
        ) from error


def _conversation(reference: Reference) -> dict[str, str]:
    """Which conversation a turn is of; nothing for prompts of one turn."""
    return {CONVERSATION: reference.conversation} if "turn" in reference.tags else {}
