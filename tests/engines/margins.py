"""Agreement of an engine's greedy tokens with our argmax, and how close the ties were where they differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tauscope_client.target import TargetClient
from tauscope_wire.messages import HiddenRequest, LogitsRequest

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Agreement over response positions.

    Attributes:
        num_positions: response positions compared.
        num_disagreements: positions where the engine's token is not our argmax.
        margins_of_disagreements: log-prob of our best minus log-prob of the engine's token, at each of them; infinite
            when that token is not among our four best.
        smallest_margin: of all positions where they agree, best minus second best.
    """

    num_positions: int
    num_disagreements: int
    margins_of_disagreements: tuple[float, ...]
    smallest_margin: float

    @property
    def agreement(self) -> float:
        """Share of positions where the engine's token is our argmax."""
        return 1 - self.num_disagreements / self.num_positions

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "num_positions": self.num_positions,
            "agreement": self.agreement,
            "margins_of_disagreements": list(self.margins_of_disagreements),
            "smallest_margin_where_equal": self.smallest_margin,
        }


def explain(target: TargetClient, texts: Mapping[str, tuple[list[int], list[int]]]) -> Explanation:
    """Compare every response token with the target service's own choice there.

    Args:
        target: holds the same weights.
        texts: prompt ids and response ids, by name.
    """
    positions, margins, smallest = 0, [], float("inf")
    for prompt, response in texts.values():
        request = HiddenRequest(
            token_ids=[*prompt, *response],
            layers=[0],  # at least one plane must be asked for; the smallest will do
            positions=(len(prompt) - 1, len(prompt) + len(response) - 1),
            logits=LogitsRequest(top_k=4),
        )
        logits = target.hidden(request).logits
        assert logits is not None
        for row, token in enumerate(response):
            best = float(logits.top_logprobs[row, 0])
            positions += 1
            if int(logits.argmax_ids[row]) == token:
                smallest = min(smallest, best - float(logits.top_logprobs[row, 1]))
                continue
            place = [float(p) for i, p in zip(logits.top_ids[row], logits.top_logprobs[row], strict=True) if i == token]
            margins.append(best - place[0] if place else float("inf"))
    return Explanation(positions, len(margins), tuple(margins), smallest)
