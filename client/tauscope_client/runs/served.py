"""What a server that speculates itself counted, beside what the frozen text predicts for the same prompts.

Both sides are brought to one form: tokens after the first one, over rounds. What is left between the server's own
number and that form, and between the form and the prediction, is named as far as the counters tell.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tauscope_client.metrics import EXPECTATIONS, PromptResult, Ratio
from tauscope_client.references.record import Reference

__all__ = ["served_beside_predicted", "served_lines"]

_EXPECTED = EXPECTATIONS[0]


def served_beside_predicted(
    references: Collection[Reference], measured: Mapping[str, Sequence[PromptResult]]
) -> dict[str, Any] | None:
    """Pool the server's counters over the prompts that have them.

    Returns:
        `engine`, `num_prompts`, `verify_steps`, `tau` (measured by the server, in the form above), `own` (the mean over
        requests of the number the server itself reports, None without one), `width` (drafts it verifies in a step, None
        when unknown), and `predicted`: for each drafter over the same prompts `tau`, `num_rounds`, `tau_unclipped`
        (null unless determined) and `tau_at_width` (null unless the server's width is smaller than the block). None
        when no server counted anything.
    """
    found = [(reference, reference.served) for reference in references if reference.served is not None]
    served = {reference.id: counts for reference, counts in found}
    kinds = sorted({str(reference.engine.get("kind", "?")) for reference, _ in found})
    steps = sum(counts.verify_steps for counts in served.values())
    if not steps:
        return None
    own = [counts.accept_length for counts in served.values() if counts.accept_length is not None]
    width = _width(found[0][0])
    return {
        "engine": ", ".join(kinds),
        "num_prompts": len(served),
        "verify_steps": steps,
        "tau": sum(counts.emitted for counts in served.values()) / steps,
        "own": sum(own) / len(own) if len(own) == len(served) else None,
        "width": width,
        "predicted": {
            name: _predicted([prompt for prompt in prompts if prompt.prompt_id in served], width)
            for name, prompts in measured.items()
        },
    }


def _width(reference: Reference) -> int | None:
    """Drafts that the server verifies in one step: the anchor is one of SGLang's draft tokens."""
    tokens = reference.engine.get("speculative_num_draft_tokens")
    if isinstance(tokens, int) and tokens > 1:
        return tokens - 1
    histogram = reference.served.histogram if reference.served is not None else None
    return len(histogram) - 1 if reference.engine.get("kind") == "vllm" and histogram else None


def _predicted(prompts: Sequence[PromptResult], width: int | None) -> dict[str, Any]:
    """The walk over some prompts; along sampled text its expectation for sampled drafts."""
    if any(_EXPECTED in prompt.ratios for prompt in prompts):
        total = _pooled([prompt.ratios[_EXPECTED] for prompt in prompts if _EXPECTED in prompt.ratios])
        return {"tau": total.value, "num_rounds": total.denominator, "tau_unclipped": None, "tau_at_width": None}
    with_rounds = [prompt for prompt in prompts if prompt.walk.num_rounds]
    total = _pooled([Ratio(sum(prompt.walk.emitted), prompt.walk.num_rounds) for prompt in with_rounds])
    unclipped = [prompt.ratios["tau_unclipped"] for prompt in with_rounds if "tau_unclipped" in prompt.ratios]
    narrow = None
    if width is not None and with_rounds and all(width < len(prompt.by_width) for prompt in with_rounds):
        narrow = _pooled([prompt.by_width[width - 1] for prompt in with_rounds]).value
    return {
        "tau": total.value,
        "num_rounds": total.denominator,
        "tau_unclipped": _pooled(unclipped).value if len(unclipped) == len(with_rounds) else None,
        "tau_at_width": narrow,
    }


def _pooled(ratios: Sequence[Ratio]) -> Ratio:
    return Ratio(sum(ratio.numerator for ratio in ratios), sum(ratio.denominator for ratio in ratios))


def served_lines(results: Mapping[str, Any]) -> list[str]:
    """Lines for people: both numbers, and what explains a difference; none when no server counted."""
    served = results.get("served")
    if served is None:
        return []
    predicted = ", ".join(
        f"{name} {_number(walk['tau'])} ({walk['num_rounds']:.0f} rounds)" for name, walk in served["predicted"].items()
    )
    lines = [
        f"served by {served['engine']} itself: tau {served['tau']:.3f} ({served['verify_steps']} rounds, "
        f"{served['num_prompts']} prompts); predicted for the same prompts: {predicted}"
    ]
    reasons = _reasons(served)
    return lines + ([f"what explains a difference: {'; '.join(reasons)}"] if reasons else [])


def _reasons(served: Mapping[str, Any]) -> list[str]:
    reasons = []
    own = served.get("own")
    if own is not None and abs(own - served["tau"]) >= 0.0005:
        why = (
            "it counts accepted drafts before the text is cut at its end"
            if served["engine"] == "vllm"
            else "it counts the first token, which comes from prefill, and averages requests"
        )
        reasons.append(f"the server's own number is {own:.3f}: {why}")
    for name, walk in served["predicted"].items():
        if walk.get("tau_at_width") is not None:
            reasons.append(
                f"the server verifies {served['width']} drafts a step, fewer than the block of {name}: predicted at "
                f"that width {walk['tau_at_width']:.3f}"
            )
        unclipped = walk.get("tau_unclipped")
        if unclipped is not None and walk["tau"] is not None and abs(unclipped - walk["tau"]) >= 0.0005:
            reasons.append(f"{name} not cut at the end of the text: {unclipped:.3f}")
    return reasons


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
