"""What a server that speculates itself counted, beside what the frozen text predicts for the same prompts."""

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

    Both sides have the same form: tokens after the first one, over rounds; the first token comes from prefill.

    Returns:
        `engine`, `num_prompts`, `verify_steps`, `tau` (measured by the server), and `predicted`: for each drafter `tau`
        and `num_rounds` of the walk over the same prompts. None when no server counted anything.
    """
    served = {reference.id: reference.served for reference in references if reference.served is not None}
    kinds = sorted({str(reference.engine.get("kind", "?")) for reference in references if reference.served is not None})
    steps = sum(counts.verify_steps for counts in served.values())
    if not steps:
        return None
    predicted = {}
    for name, prompts in measured.items():
        predicted[name] = _predicted([prompt for prompt in prompts if prompt.prompt_id in served])
    return {
        "engine": ", ".join(kinds),
        "num_prompts": len(served),
        "verify_steps": steps,
        "tau": sum(counts.emitted for counts in served.values()) / steps,
        "predicted": predicted,
    }


def _predicted(prompts: Sequence[PromptResult]) -> dict[str, Any]:
    """The walk over some prompts; along sampled text its expectation for sampled drafts."""
    if any(_EXPECTED in prompt.ratios for prompt in prompts):
        ratios = [prompt.ratios[_EXPECTED] for prompt in prompts if _EXPECTED in prompt.ratios]
    else:
        ratios = [Ratio(sum(prompt.walk.emitted), prompt.walk.num_rounds) for prompt in prompts]
    rounds = sum(ratio.denominator for ratio in ratios)
    tokens = sum(ratio.numerator for ratio in ratios)
    return {"tau": tokens / rounds if rounds else None, "num_rounds": rounds}


def served_lines(results: Mapping[str, Any]) -> list[str]:
    """One line for people, or none."""
    served = results.get("served")
    if served is None:
        return []
    predicted = ", ".join(
        f"{name} {'–' if walk['tau'] is None else format(walk['tau'], '.3f')} ({walk['num_rounds']:.0f} rounds)"
        for name, walk in served["predicted"].items()
    )
    return [
        f"served by {served['engine']} itself: tau {served['tau']:.3f} ({served['verify_steps']} rounds, "
        f"{served['num_prompts']} prompts); predicted for the same prompts: {predicted}"
    ]
