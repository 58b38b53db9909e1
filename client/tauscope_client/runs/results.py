"""`results.json`: every number of a run under its own name, how far it may be off, and what to be careful about.

{"schema": "tauscope.results/1",
 "sampling": {temperature, top_k, top_p, seed, words} or null for greedy references,
 "num_prompts": .., "failures": [..], "warnings": [..], "definitions": {name: text},
 "stability": {num_asked, is_flushed, cached_tokens, unrepeated, words} or null when nothing was asked again,
 "served": what a server that speculates counted, see `runs.served`, or null,
 "disagreements": {num_positions, num_disagreements, num_near_ties, largest_gap, places} or null,
 "comparisons": [{"before": drafter, "after": drafter, "statistics": {name: paired comparison}}, ..],
 "drafters": {name: {"overall": {values, intervals, curves, histograms, counts},
                     "splits": {split: the same},
                     "strata": {tag or "context length" or "answer position": [{label, estimate, low, high, ..}, ..]},
                     "prompts": [{prompt_id, tags, anchors, accepted, emitted, drafted, values}, ..]}}}
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tauscope_client.metrics import (
    DEFINITIONS,
    EXPECTATIONS,
    PromptResult,
    Stratum,
    by_answer_position,
    by_context_length,
    by_tag,
    compare,
    intervals_of,
    pool,
)
from tauscope_client.references.sampling import GREEDY, TextSampling
from tauscope_client.runs.conversations import CONVERSATION, by_conversation

__all__ = ["ANSWER_POSITION", "COMPARED", "CONTEXT_LENGTH", "RESULTS_SCHEMA", "compared", "results_of"]

RESULTS_SCHEMA = "tauscope.results/1"

COMPARED = (
    "tau",
    "tau_all_anchors",
    "accept_rate",
    "topk_walk_tau_4",
    "topk_walk_tau_8",
    "topk_streak_4",
    "topk_streak_8",
)
"""Statistics that are compared between drafters along greedy text."""

CONTEXT_LENGTH = "context length"
ANSWER_POSITION = "answer position"

MAX_VALUES_OF_A_TAG = 40
"""A tag with more values than this names prompts, not strata."""


def results_of(
    measured: Mapping[str, Sequence[PromptResult]],
    *,
    failures: Sequence[Mapping[str, Any]],
    warnings: Sequence[str],
    stability: Mapping[str, Any] | None = None,
    served: Mapping[str, Any] | None = None,
    disagreements: Mapping[str, Any] | None = None,
    sampling: TextSampling = GREEDY,
) -> dict[str, Any]:
    """Pool the measured prompts of each drafter: overall, by split, and by every other stratum.

    Args:
        measured: drafter name -> its prompts, the same prompts in the same order for every drafter.
        failures: prompts that are not among them, and why.
        warnings: what a reader must know.
        stability: whether the reference server repeats itself, see `references.stability`.
        served: what a reference server that speculates counted itself, see `runs.served`.
        disagreements: where references and target part, see `runs.agreement`; means nothing along sampled text.
        sampling: how the tokens of the references were chosen.
    """
    drafters = {name: _drafter(prompts, is_greedy=sampling.is_greedy) for name, prompts in measured.items()}
    first = next(iter(drafters.values()), None)
    num_prompts = len(first["prompts"]) if first else 0
    return {
        "schema": RESULTS_SCHEMA,
        "sampling": None if sampling.is_greedy else {**sampling.to_dict(), "words": sampling.words},
        "num_prompts": num_prompts,
        "failures": [dict(failure) for failure in failures],
        "warnings": list(warnings),
        "stability": None if stability is None else dict(stability),
        "served": None if served is None else dict(served),
        "disagreements": None if disagreements is None or not sampling.is_greedy else dict(disagreements),
        "comparisons": _comparisons(measured, is_greedy=sampling.is_greedy) if num_prompts else [],
        "drafters": drafters,
        "definitions": dict(DEFINITIONS),
    }


def compared(*, is_greedy: bool) -> tuple[str, ...]:
    """Statistics that are compared between drafters; the first is the headline."""
    return COMPARED if is_greedy else (*EXPECTATIONS, *COMPARED)


def strata_tags(prompts: Sequence[PromptResult]) -> list[str]:
    """Tags that divide the prompts into few groups, in the order they appear."""
    tags = list(dict.fromkeys(tag for prompt in prompts for tag in prompt.tags))
    found = []
    for tag in tags:
        if tag == CONVERSATION:
            continue
        num_values = len({prompt.tags.get(tag) for prompt in prompts})
        if 2 <= num_values <= MAX_VALUES_OF_A_TAG and (num_values < len(prompts) or tag == "split"):
            found.append(tag)
    return found


def _drafter(prompts: Sequence[PromptResult], *, is_greedy: bool) -> dict[str, Any]:
    splits = list(dict.fromkeys(prompt.tags["split"] for prompt in prompts))
    strata: dict[str, Sequence[Stratum]] = {
        tag: by_tag(prompts, tag, statistic="tau" if is_greedy else EXPECTATIONS[0]) for tag in strata_tags(prompts)
    }
    strata[CONTEXT_LENGTH] = by_context_length(prompts)
    strata[ANSWER_POSITION] = by_answer_position(prompts)
    return {
        "overall": _pooled(prompts),
        "splits": {split: _pooled([p for p in prompts if p.tags["split"] == split]) for split in splits},
        "strata": {name: [stratum.to_dict() for stratum in found] for name, found in strata.items()},
        "prompts": [prompt.to_dict() for prompt in prompts],
    }


def _pooled(prompts: Sequence[PromptResult]) -> dict[str, Any]:
    summary = pool(prompts).to_dict()
    ratios = {name for prompt in prompts for name in prompt.ratios}
    names = [name for name in summary["values"] if name in ratios]
    intervals = {name: interval.to_dict() for name, interval in intervals_of(by_conversation(prompts), names).items()}
    return {
        "values": summary["values"],
        "intervals": intervals,
        "curves": summary["curves"],
        "histograms": summary["histograms"],
        "counts": summary["counts"],
    }


def _comparisons(measured: Mapping[str, Sequence[PromptResult]], *, is_greedy: bool) -> list[dict[str, Any]]:
    """Each drafter with the one before it, and the last with the first."""
    names = list(measured)
    pairs = list(pairwise(names))
    if len(names) > 2:
        pairs.append((names[0], names[-1]))
    return [
        {
            "before": before,
            "after": after,
            "statistics": {
                name: one.to_dict()
                for name, one in compare(
                    by_conversation(measured[before]),
                    by_conversation(measured[after]),
                    statistics=compared(is_greedy=is_greedy),
                ).items()
            },
        }
        for before, after in pairs
    ]
