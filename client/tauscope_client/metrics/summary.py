"""Everything about one drafter over many prompts, each number under its own name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from tauscope_client.metrics.definitions import DEFINITIONS, TOP_KS, TREE_BUDGETS
from tauscope_client.metrics.engines import engine_values, pooled
from tauscope_client.metrics.expectations import EXPECTATIONS
from tauscope_client.metrics.positions import Curve, PositionCounts
from tauscope_client.metrics.prompts import PromptResult, Ratio, measure
from tauscope_client.metrics.trace import Trace

__all__ = ["Summary", "pool", "summarise"]

_POOLED = ("tau", "tau_prompt_mean", "tau_unclipped", "tau_stop_clipped", "tau_all_anchors", "accept_rate")


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One drafter over many prompts.

    Attributes:
        values: scalar name -> number, None where the data cannot determine it.
        curves: name -> one entry for each block position (or width); None where nothing was counted.
        histograms: name -> counts or shares.
        counts: name -> int.
        prompts: what each prompt contributed, in the order given.
    """

    values: Mapping[str, float | None]
    curves: Mapping[str, Curve]
    histograms: Mapping[str, tuple[float, ...] | tuple[tuple[int, ...], ...]]
    counts: Mapping[str, int]
    prompts: tuple[PromptResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: null for what cannot be determined, never NaN; carries the definition of every name in it."""
        names = [*self.values, *self.curves, *self.histograms, *self.counts]
        return {
            "values": dict(self.values),
            "curves": {name: list(curve) for name, curve in self.curves.items()},
            "histograms": {
                name: [list(row) if isinstance(row, tuple) else row for row in rows]
                for name, rows in self.histograms.items()
            },
            "counts": dict(self.counts),
            "definitions": {name: DEFINITIONS[name] for name in names},
            "prompts": [prompt.to_dict() for prompt in self.prompts],
        }


def summarise(traces: Sequence[Trace]) -> Summary:
    """Measure one drafter over many prompts.

    Raises:
        ValueError: a prompt id comes twice, or a walk visits a position that is not among its anchors.
    """
    return pool([measure(trace) for trace in traces])


def pool(prompts: Sequence[PromptResult]) -> Summary:
    """Pool measured prompts: all of them, or those of one stratum.

    Raises:
        ValueError: a prompt id comes twice.
    """
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise ValueError(f"prompt_id {prompt.prompt_id!r} comes twice: every prompt counts once")
        seen.add(prompt.prompt_id)
    num_drafts = max((len(prompt.by_width) for prompt in prompts), default=0)
    return Summary(
        values=_values(prompts),
        curves=_curves(prompts, num_drafts),
        histograms=_histograms(prompts, num_drafts),
        counts={
            "num_prompts": len(prompts),
            "num_empty": sum(prompt.is_empty for prompt in prompts),
            "num_rounds": sum(prompt.walk.num_rounds for prompt in prompts),
            "num_anchors": sum(prompt.positions_all.num_anchors for prompt in prompts),
            "num_response_tokens": sum(prompt.response_tokens for prompt in prompts),
            "num_prompts_with_argmax": sum("agreement" in prompt.ratios for prompt in prompts),
        },
        prompts=tuple(prompts),
    )


def _values(prompts: Sequence[PromptResult]) -> dict[str, float | None]:
    values: dict[str, float | None] = {name: pooled(prompts, name) for name in _POOLED}
    for k in TOP_KS:
        values[f"topk_walk_tau_{k}"] = pooled(prompts, f"topk_walk_tau_{k}")
    for k in TOP_KS:
        values[f"topk_streak_{k}"] = pooled(prompts, f"topk_streak_{k}")
    # Trees and expectations are added afterwards, so their names are those that some prompt has.
    for budget in TREE_BUDGETS:
        name = f"ddtree_tau_{budget}"
        if any(name in prompt.ratios for prompt in prompts):
            values[name] = pooled(prompts, name)
    for name in EXPECTATIONS:
        if any(name in prompt.ratios for prompt in prompts):
            values[name] = pooled(prompts, name)
    # Some references may come without the target's argmax; the share is over those that have it.
    values["agreement"] = pooled([prompt for prompt in prompts if "agreement" in prompt.ratios], "agreement")
    return values | engine_values(prompts)


def _curves(prompts: Sequence[PromptResult], num_drafts: int) -> dict[str, Curve]:
    zero = PositionCounts.zeros(num_drafts)
    curves: dict[str, Curve] = {}
    for name, counts in (
        ("walk", reduce(add, (prompt.positions_walk for prompt in prompts), zero)),
        ("all", reduce(add, (prompt.positions_all for prompt in prompts), zero)),
    ):
        curves[f"prefix_rate_{name}"] = counts.prefix_rate
        curves[f"conditional_rate_{name}"] = counts.conditional_rate
        curves[f"teacher_forced_accuracy_{name}"] = counts.teacher_forced_accuracy
        curves[f"prefix_rate_proposed_{name}"] = counts.prefix_rate_proposed
    curves["tau_by_width"] = tuple(_at_width(prompts, width).value for width in range(1, num_drafts + 1))
    return curves


def _at_width(prompts: Sequence[PromptResult], width: int) -> Ratio:
    # A block shorter than the width is verified whole.
    parts = [prompt.by_width[min(width, len(prompt.by_width)) - 1] for prompt in prompts]
    return Ratio(sum(part.numerator for part in parts), sum(part.denominator for part in parts))


def _histograms(
    prompts: Sequence[PromptResult], num_drafts: int
) -> dict[str, tuple[float, ...] | tuple[tuple[int, ...], ...]]:
    accepted = np.zeros(num_drafts + 1, dtype=np.int64)
    emitted = np.zeros(num_drafts + 2, dtype=np.int64)
    # Rows with fewer kept candidates know less: places are comparable only up to the smallest k.
    top_k = min((prompt.rank_counts.shape[1] - 1 for prompt in prompts), default=0)
    ranks = np.zeros((num_drafts, top_k + 1), dtype=np.int64)
    for prompt in prompts:
        accepted += np.bincount(prompt.walk.accepted, minlength=num_drafts + 1)[: num_drafts + 1]
        emitted += np.bincount(prompt.walk.emitted, minlength=num_drafts + 2)[: num_drafts + 2]
        rows = prompt.rank_counts.shape[0]
        ranks[:rows, :top_k] += prompt.rank_counts[:, :top_k]
        ranks[:rows, top_k] += prompt.rank_counts[:, top_k:].sum(axis=1)
    num_rounds = int(accepted.sum())
    return {
        "accepted_histogram": tuple(accepted.tolist()),
        "emitted_histogram": tuple(emitted.tolist()),
        "emitted_shares": tuple((emitted / num_rounds).tolist()) if num_rounds else (),
        "label_rank_histogram": tuple(ranks.sum(axis=0).tolist()),
        "label_rank_histogram_by_position": tuple(tuple(row) for row in ranks.tolist()),
    }
