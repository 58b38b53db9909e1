"""What a reader of the numbers must be careful about, seen from the run's own data."""

from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path

from tauscope_client.metrics import PromptResult, pool
from tauscope_client.metrics.intervals import FEW_PROMPTS
from tauscope_client.references.record import Reference
from tauscope_client.runs.draft_files import read_drafts, read_target
from tauscope_client.runs.drafter_warnings import grouped
from tauscope_client.runs.measuring import drafts_path, target_path
from tauscope_client.runs.text_checks import is_looping
from tauscope_client.runs.thinking import Mode, answer_modes, thinking_cautions

__all__ = ["cautions_of"]

LOW_AGREEMENT = 0.97
"""Kernels of different engines change 0.2-2.8 % of greedy tokens; more is another model, template or dtype."""

RANDOM_SHARE = 0.8
"""Share of the logarithm of the vocabulary: text stays far below it, tokens drawn at random reach or pass it."""

LOOPING_SHARE = 0.2
"""Share of looping answers from which they colour tau."""

_SHOWN = 5


def cautions_of(
    run: Path,
    references: Mapping[str, Reference],
    measured: Mapping[str, Sequence[PromptResult]],
    incomplete: Sequence[str],
    *,
    trained_thinking: Mapping[str, Mode | None] | None = None,
) -> list[str]:
    """One line for each thing to be careful about, most serious first.

    Args:
        run: the run folder.
        references: every reference by turn id.
        measured: drafter -> its prompts.
        incomplete: turns that are left out.
        trained_thinking: drafter -> whether it was trained on thinking, None where nobody knows.
    """
    cautions = _of_pairs(run, measured)
    prompts = next(iter(measured.values()), [])
    if incomplete:
        cautions.append(
            f"{len(incomplete)} prompts are left out of every table because a drafter has not finished them: "
            + _named(incomplete)
        )
    agreement = pool(prompts).values["agreement"] if prompts else None
    is_greedy = all(reference.temperature == 0 for reference in references.values())
    if agreement is not None and is_greedy and agreement < LOW_AGREEMENT:
        cautions.append(
            f"agreement is {agreement:.1%}: the references are not what this target service would say itself; "
            "check model, revision, dtype and chat template of the reference server"
        )
    drifted = [turn_id for turn_id, reference in references.items() if reference.drifted]
    if drifted:
        cautions.append(
            f"{len(drifted)} references may not be the tokens the server sampled (drifted): {_named(drifted)}"
        )
    random = [turn_id for turn_id in references if _looks_random(run, turn_id)]
    if random:
        cautions.append(
            f"{len(random)} prompts look like random tokens to the target: {_named(random)}; acceptance on random text "
            "means nothing"
        )
    cautions += thinking_cautions(answer_modes(run, references.values()), trained_thinking or {})
    cautions += _of_answers(references, prompts)
    if 0 < len(prompts) < FEW_PROMPTS:
        cautions.append(f"only {len(prompts)} prompts: intervals are wide and rough; use {FEW_PROMPTS} or more")
    return cautions


def _of_pairs(run: Path, measured: Mapping[str, Sequence[PromptResult]]) -> list[str]:
    """What the drafter service said with its drafts, whichever run asked for them."""
    return grouped(
        (name, text)
        for name, prompts in measured.items()
        for prompt in prompts
        for text in read_drafts(drafts_path(run, name, prompt.prompt_id)).facts["warnings"]
    )


def _of_answers(references: Mapping[str, Reference], prompts: Sequence[PromptResult]) -> list[str]:
    cautions: list[str] = []
    looping = [turn_id for turn_id, reference in references.items() if is_looping(reference.response_ids)]
    if len(looping) > LOOPING_SHARE * len(references):
        cautions.append(
            f"{len(looping)} of {len(references)} answers end in a loop, which any drafter predicts: tau is higher "
            f"than on text that goes on ({_named(looping)})"
        )
    cut = sum(reference.finish_reason == "other" for reference in references.values())
    if cut:
        cautions.append(f"{cut} references ended for a reason of the server's own, neither a stop id nor the limit")
    empty = sum(prompt.is_empty for prompt in prompts)
    if empty:
        cautions.append(f"{empty} responses are over after their first token: no rounds, not part of tau")
    if any(reference.turn > 1 for reference in references.values()):
        cautions.append(
            "intervals resample whole conversations; those of single strata take turns as independent prompts"
        )
    return cautions


def _looks_random(run: Path, turn_id: str) -> bool:
    path = target_path(run, turn_id)
    if not path.exists():
        return False
    facts = read_target(path).facts
    logprob, vocab_size = facts.get("prompt_mean_logprob"), facts.get("vocab_size")
    return logprob is not None and vocab_size is not None and -logprob > RANDOM_SHARE * log(vocab_size)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
