"""`results.json`: every number of a run under its own name, and what to be careful about.

{"schema": "tauscope.results/1",
 "num_prompts": .., "failures": [..], "warnings": [..], "definitions": {name: text},
 "served": {"engine", "num_prompts", "verify_steps", "tau", "predicted": {drafter: {"tau", "num_rounds"}}} or null,
 "drafters": {name: {"overall": {values, curves, histograms, counts},
                     "splits": {split: the same},
                     "prompts": [{prompt_id, tags, anchors, accepted, emitted, drafted, values}, ..]}}}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tauscope_client.metrics import DEFINITIONS, PromptResult, pool

__all__ = ["RESULTS_SCHEMA", "results_of"]

RESULTS_SCHEMA = "tauscope.results/1"


def results_of(
    measured: Mapping[str, Sequence[PromptResult]],
    *,
    failures: Sequence[Mapping[str, Any]],
    warnings: Sequence[str],
    served: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Pool the measured prompts of each drafter, overall and by split.

    Args:
        measured: drafter name -> its prompts, the same prompts in the same order for every drafter.
        failures: prompts that are not among them, and why.
        warnings: what a reader must know.
        served: what a reference server that speculates counted itself, see `runs.served`.
    """
    drafters = {name: _drafter(prompts) for name, prompts in measured.items()}
    first = next(iter(drafters.values()), None)
    num_prompts = len(first["prompts"]) if first else 0
    return {
        "schema": RESULTS_SCHEMA,
        "num_prompts": num_prompts,
        "failures": [dict(failure) for failure in failures],
        "warnings": list(warnings),
        "served": None if served is None else dict(served),
        "drafters": drafters,
        "definitions": dict(DEFINITIONS),
    }


def _drafter(prompts: Sequence[PromptResult]) -> dict[str, Any]:
    splits = list(dict.fromkeys(prompt.tags["split"] for prompt in prompts))
    return {
        "overall": _pooled(prompts),
        "splits": {split: _pooled([p for p in prompts if p.tags["split"] == split]) for split in splits},
        "prompts": [prompt.to_dict() for prompt in prompts],
    }


def _pooled(prompts: Sequence[PromptResult]) -> dict[str, Any]:
    summary = pool(prompts).to_dict()
    return {name: summary[name] for name in ("values", "curves", "histograms", "counts")}
