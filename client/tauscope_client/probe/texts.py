"""The texts a probe drafts on: frozen references, or answers made for it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tauscope_client.freezing import Frozen, freeze
from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptFile, load_prompts
from tauscope_client.references.choice import ReferenceChoice
from tauscope_client.references.collect import ReferencePlan
from tauscope_client.references.record import REFERENCE_SCHEMA, Reference
from tauscope_client.references.stored import StoredSource, read_references
from tauscope_client.target import TargetClient
from tauscope_wire.errors import RequestError

__all__ = ["answers_to", "cut", "frozen_references", "spread"]

T = TypeVar("T")

REFERENCES = "references.jsonl"


def frozen_references(path: Path) -> list[Reference] | None:
    """References of a run folder or of a `references.jsonl`; None when `path` is neither (a prompts file).

    Raises:
        RequestError: a folder without a run, or a damaged file.
    """
    if path.is_dir():
        if not (path / REFERENCES).exists():
            raise RequestError(f"{path}: a folder without {REFERENCES} is no run; give a run folder or a prompts file")
        return read_references(path / REFERENCES, tolerate_torn_end=True)
    return read_references(path) if _is_reference_file(path) else None


def _is_reference_file(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return False  # whatever it is, the reader of prompts says what is wrong with it
    return isinstance(first, dict) and first.get("schema") == REFERENCE_SCHEMA


def answers_to(
    prompts: Path,
    count: int | None,
    choice: ReferenceChoice,
    out: Path,
    *,
    max_new_tokens: int | None,
    default_limit: int,
    template_kwargs: dict[str, object],
    target: TargetClient,
    progress: Progress,
) -> Frozen:
    """Greedy answers to prompts, kept in the folder of the probe.

    Args:
        prompts: a prompts file.
        count: use so many of its prompts, evenly spread; None for all.
        choice: who answers.
        out: folder of the probe.
        max_new_tokens: length limit, None for the stored one (frozen answers) or `default_limit`.
        default_limit: see there.
        template_kwargs: options of the chat template.
        target: renders the prompts.
        progress: told of every answer.

    Raises:
        PromptFileError: a prompts file that cannot be used.
        TauscopeError: a failure that concerns all answers.
    """
    file = load_prompts(prompts)
    chosen = PromptFile(file.path, file.sha256, tuple(spread(file.records, count)))
    with choice.open(target) as source:
        limit = max_new_tokens
        if limit is None:
            limit = source.max_new_tokens() if isinstance(source, StoredSource) else default_limit
        plan = ReferencePlan(max_new_tokens=limit, tail_tokens=0, template_kwargs=template_kwargs)
        return freeze(chosen, plan, out / REFERENCES, target=target, source=source, progress=progress)


def cut(reference: Reference, limit: int | None) -> Reference:
    """The reference with at most `limit` response tokens."""
    if limit is None or len(reference.response_ids) <= limit:
        return reference
    changes = {"response_ids": reference.response_ids[:limit], "tail_ids": [], "finish_reason": "length"}
    return reference.model_copy(update=changes)


def spread(items: Sequence[T], count: int | None) -> list[T]:
    """At most `count` items, evenly spread over all, so that every part of a sorted file has its share."""
    if count is None or count >= len(items):
        return list(items)
    return [items[(2 * index + 1) * len(items) // (2 * count)] for index in range(count)]
