"""Makes a frozen reference file: finished answers are kept as they come, the finished file is in the prompts' order."""

from dataclasses import dataclass
from pathlib import Path

from tauscope_client.failures import Failure
from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptFile
from tauscope_client.references.collect import ReferencePlan, collect_references
from tauscope_client.references.record import Reference
from tauscope_client.references.source import ReferenceSource
from tauscope_client.references.stability import Stability, check_stability
from tauscope_client.references.stored import read_references
from tauscope_client.runs.files import JsonLines, write_text
from tauscope_client.target import TargetClient
from tauscope_wire.errors import ErrorCode, MismatchError

__all__ = ["Frozen", "freeze"]


@dataclass(frozen=True)
class Frozen:
    """A frozen reference set.

    Attributes:
        references: in the order of the prompts.
        failures: prompts that have none.
        stability: what asking some of them again gave, None when nothing was asked.
    """

    references: tuple[Reference, ...]
    failures: tuple[Failure, ...]
    stability: Stability | None


def freeze(
    prompts: PromptFile,
    plan: ReferencePlan,
    out: Path,
    *,
    target: TargetClient,
    source: ReferenceSource,
    progress: Progress,
    num_repeats: int = 0,
    may_flush: bool = False,
) -> Frozen:
    """Write the references of all prompts to `out`, continuing what is there.

    Args:
        prompts: what to ask.
        plan: how.
        out: the file.
        target: renders the prompts.
        source: answers them.
        progress: told of every answer.
        num_repeats: references to ask for again, to see whether the server repeats itself.
        may_flush: empty the server's cache for that.

    Raises:
        MismatchError: the file there was made with another limit or template.
        TauscopeError: a failure that concerns the whole set. What was finished stays in the file.
    """
    lines = JsonLines(out)
    try:
        finished = {reference.id: reference for reference in read_references(out)}
        for reference in finished.values():
            plan.sampling.check(reference, where=str(out))
            if (reference.max_new_tokens, reference.template_kwargs) != (
                plan.max_new_tokens,
                dict(plan.template_kwargs),
            ):
                raise MismatchError(
                    f"{out}: {reference.id!r} was made with max_new_tokens {reference.max_new_tokens} and template "
                    f"kwargs {reference.template_kwargs}; give another file with --out",
                    ErrorCode.TARGET_MISMATCH,
                )
        references, failures = collect_references(
            prompts.records,
            plan,
            target=target,
            source=source,
            finished=finished,
            keep=lambda reference: lines.append(reference.model_dump_json(by_alias=True)),
            progress=progress,
        )
    finally:
        lines.close()
    ordered = list(references.values())
    write_text(out, "".join(reference.model_dump_json(by_alias=True) + "\n" for reference in ordered))
    stability = None
    if num_repeats and ordered:
        stability = check_stability(
            ordered, prompts.records, source, num_asked=num_repeats, progress=progress, may_flush=may_flush
        )
    return Frozen(tuple(ordered), tuple(failures), stability)
