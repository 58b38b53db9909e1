"""Pooled statistics with their intervals, by name."""

from collections.abc import Mapping, Sequence
from math import inf

from tauscope_client.metrics.intervals import Interval, ratio_interval
from tauscope_client.metrics.prompts import PromptResult

__all__ = ["bounds_of", "intervals_of"]


def bounds_of(statistic: str) -> tuple[float, float]:
    """Values that a statistic cannot leave, by its name in `DEFINITIONS`."""
    if statistic.startswith(("tau", "topk_walk_tau", "ddtree_tau", "expected_tau", "expected_emitted")):
        return 1.0, inf  # every round emits at least one token
    if statistic.endswith(("_rate", "agreement")) or statistic.startswith("expected_acceptance"):
        return 0.0, 1.0
    return 0.0, inf


def intervals_of(
    prompts: Sequence[PromptResult], statistics: Sequence[str], *, level: float = 0.95, seed: int = 0
) -> Mapping[str, Interval]:
    """The interval of each statistic over all prompts; those that some prompt with rounds lacks have no estimate."""
    found = {}
    for name in statistics:
        is_missing = any(name not in prompt.ratios and not prompt.is_empty for prompt in prompts)
        ratios = [] if is_missing else [prompt.ratios[name] for prompt in prompts if name in prompt.ratios]
        found[name] = ratio_interval(ratios, level=level, seed=seed, bounds=bounds_of(name))
    return found
