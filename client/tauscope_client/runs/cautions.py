"""What a reader of the numbers must be careful about, seen from the run's own data."""

from collections.abc import Collection, Mapping, Sequence

from tauscope_client.metrics import PromptResult, pool
from tauscope_client.references.record import Reference

__all__ = ["cautions_of"]

FEW_PROMPTS = 30
"""Below this an interval over prompts is wide and its coverage uncertain."""

LOW_AGREEMENT = 0.97
"""Kernels of different engines change 0.2-2.8 % of greedy tokens; more is another model, template or dtype."""


def cautions_of(
    references: Collection[Reference], measured: Mapping[str, Sequence[PromptResult]], incomplete: Sequence[str]
) -> list[str]:
    """One line for each thing to be careful about, most serious first."""
    cautions: list[str] = []
    prompts = next(iter(measured.values()), [])
    if incomplete:
        cautions.append(
            f"{len(incomplete)} prompts are left out of every table because a drafter has not finished them: "
            + ", ".join(incomplete[:5])
        )
    agreement = pool(prompts).values["agreement"] if prompts else None
    if agreement is not None and agreement < LOW_AGREEMENT:
        cautions.append(
            f"agreement is {agreement:.1%}: the references are not what this target service would say itself; "
            "check model, revision, dtype and chat template of the reference server"
        )
    drifted = [reference.id for reference in references if reference.drifted]
    if drifted:
        cautions.append(
            f"{len(drifted)} references may not be the tokens the server sampled (drifted): " + ", ".join(drifted[:5])
        )
    cut = sum(reference.finish_reason == "other" for reference in references)
    if cut:
        cautions.append(f"{cut} references ended for a reason of the server's own, neither a stop id nor the limit")
    empty = sum(prompt.is_empty for prompt in prompts)
    if empty:
        cautions.append(f"{empty} responses are over after their first token: no rounds, not part of tau")
    if 0 < len(prompts) < FEW_PROMPTS:
        cautions.append(f"only {len(prompts)} prompts: differences of a few percent mean nothing")
    return cautions
