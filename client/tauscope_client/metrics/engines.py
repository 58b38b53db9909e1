"""The numbers other programs would print for the same rounds, each by its own definition.

Sources: z-lab/dflash `dflash/model.py` and `benchmark.py`; deepseek-ai/DeepSpec; vLLM `v1/spec_decode/metrics.py`;
SGLang `meta_info` (`spec_accept_length`, `spec_accept_rate`); SpecForge `benchmarks/benchmarker/utils`. They differ in
whether the bonus and the prefill token count, in where the text is cut, and in pooling rounds or averaging requests.
"""

from collections.abc import Sequence
from statistics import fmean

from tauscope_client.metrics.prompts import PromptResult, Ratio

__all__ = ["engine_values", "pooled"]


def pooled(prompts: Sequence[PromptResult], name: str) -> float | None:
    """Sum of numerators over sum of denominators, None unless every prompt with rounds determines the statistic."""
    total = Ratio(0, 0)
    for prompt in prompts:
        ratio = prompt.ratios.get(name)
        if ratio is None:
            if prompt.is_empty:
                continue
            return None
        total = Ratio(total.numerator + ratio.numerator, total.denominator + ratio.denominator)
    return total.value


def engine_values(prompts: Sequence[PromptResult]) -> dict[str, float | None]:
    """Every engine's and benchmark's own number, by its name in `DEFINITIONS`. Empty responses are left out."""
    with_rounds = [prompt for prompt in prompts if not prompt.is_empty]
    unclipped = [prompt.ratios.get("tau_unclipped") for prompt in with_rounds]
    stop_clipped = [prompt.ratios.get("tau_stop_clipped") for prompt in with_rounds]
    num_rounds = sum(prompt.walk.num_rounds for prompt in with_rounds)
    accepted = sum(sum(prompt.walk.accepted) for prompt in with_rounds)
    # SGLang, vLLM and DeepSpec propose the whole width in every step, also where the length limit leaves less room.
    full_width = sum(prompt.walk.num_rounds * len(prompt.by_width) for prompt in with_rounds)
    unclipped_tau = pooled(with_rounds, "tau_unclipped")
    entries = None if None in stop_clipped else sum(ratio.numerator for ratio in stop_clipped if ratio is not None)
    raw = None if None in unclipped else sum(r.numerator - r.denominator for r in unclipped if r is not None)

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    def quotient(numerator: float | None, denominator: float) -> float | None:
        return None if numerator is None or not denominator else numerator / denominator

    completions = [Ratio(1 + sum(prompt.walk.emitted), prompt.walk.num_rounds) for prompt in with_rounds]
    return {
        "sglang_accept_length_pooled": quotient(sum(ratio.numerator for ratio in completions), num_rounds),
        "sglang_accept_length_mean": mean([ratio.value for ratio in completions]),
        "sglang_accept_rate_mean": mean(
            [sum(p.walk.accepted) / (p.walk.num_rounds * len(p.by_width)) for p in with_rounds]
        ),
        "vllm_acceptance_length": unclipped_tau,
        "vllm_acceptance_length_clipped": quotient(accepted + num_rounds, num_rounds),
        "vllm_draft_acceptance_rate": quotient(raw, full_width),
        "zlab_acceptance_length_april": mean([None if ratio is None else ratio.value for ratio in unclipped]),
        "zlab_acceptance_length": mean([prompt.walk.tau for prompt in with_rounds]),
        "deepspec_acceptance_length": pooled(with_rounds, "tau_stop_clipped"),
        "deepspec_verify_rate": quotient(entries, full_width + num_rounds),
    }
