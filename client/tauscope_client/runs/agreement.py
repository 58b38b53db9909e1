"""Where the references are not what the target service would say, and whether those places are near-ties."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tauscope_client.metrics import PromptResult
from tauscope_client.references.record import Reference
from tauscope_client.runs.draft_files import read_target
from tauscope_client.runs.measuring import target_path

__all__ = ["NEAR_TIE", "agreement_line", "disagreements_of"]

NEAR_TIE = 0.2
"""Natural logarithm: the two best tokens differ by less than a fifth in probability, which other kernels can turn."""

MAX_LISTED = 50


def disagreements_of(
    run: Path, references: Mapping[str, Reference], prompts: list[PromptResult]
) -> dict[str, Any] | None:
    """Places within the texts where the reference token is not the target's own argmax.

    Returns:
        `num_positions`, `num_disagreements`, `num_near_ties` (the argmax is ahead by less than `near_tie`), the
        `largest_gap`, and the places with the largest gaps; None when the target's choices are not known.
    """
    places: list[dict[str, Any]] = []
    num_positions = 0
    for prompt in prompts:
        path = target_path(run, prompt.prompt_id)
        if not path.exists():
            continue
        view = read_target(path)
        ids = references[prompt.prompt_id].response_ids[: prompt.response_tokens]
        num_positions += len(ids)
        for position, (wanted, own) in enumerate(zip(ids, view.argmax_ids.tolist(), strict=False)):
            if wanted != own:
                gap = float(view.top_logprobs[position, 0] - view.response_logprobs[position])
                places.append({"prompt_id": prompt.prompt_id, "position": position, "gap": round(gap, 4)})
    if not num_positions:
        return None
    places.sort(key=lambda place: -place["gap"])
    return {
        "num_positions": num_positions,
        "num_disagreements": len(places),
        "num_near_ties": sum(place["gap"] < NEAR_TIE for place in places),
        "near_tie": NEAR_TIE,
        "largest_gap": places[0]["gap"] if places else None,
        "places": places[:MAX_LISTED],
    }


def agreement_line(results: Mapping[str, Any]) -> list[str]:
    """One sentence for people; none when everything agrees or nothing is known."""
    found = results.get("disagreements")
    if not found or not found["num_disagreements"]:
        return []
    first = found["places"][0]
    return [
        f"{found['num_disagreements']} of {found['num_positions']} reference tokens are not the target service's own "
        f"choice; {found['num_near_ties']} of them are near-ties (the best is ahead by less than {found['near_tie']:g} "
        f"nats); the largest gap is {found['largest_gap']:.2f} nats ({first['prompt_id']}, token {first['position']})"
    ]
