"""Does the server repeat itself? Asks for a sample of the references again and compares the ids.

The first answer of a prompt is usually cold and the second finds the prompt in the server's prefix cache, where hybrid
models have answered differently. Nothing is flushed: the server may be in use by others.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptRecord
from tauscope_client.references.record import Reference
from tauscope_client.references.sampling import TextSampling
from tauscope_client.references.source import ReferenceSource, Turn

__all__ = ["STAGE", "Stability", "Unrepeated", "check_stability"]

STAGE = "repeats"


@dataclass(frozen=True)
class Unrepeated:
    """A reference that came back otherwise.

    Attributes:
        id: the turn.
        position: response position of the first token that differs.
    """

    id: str
    position: int


@dataclass(frozen=True)
class Stability:
    """What asking again gave.

    Attributes:
        num_asked: references asked for again.
        unrepeated: those that came back otherwise.
    """

    num_asked: int
    unrepeated: tuple[Unrepeated, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"num_asked": self.num_asked, "unrepeated": [asdict(one) for one in self.unrepeated]}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Stability":
        """The inverse of `to_dict`."""
        return cls(value["num_asked"], tuple(Unrepeated(**one) for one in value["unrepeated"]))

    def caution(self) -> str | None:
        """What a reader must know, None when everything was repeated."""
        if not self.unrepeated:
            return None
        first = self.unrepeated[0]
        return (
            f"the reference server does not repeat itself: {len(self.unrepeated)} of {self.num_asked} answers came "
            f"back otherwise ({first.id!r} from token {first.position} on); use a deterministic server, or freeze the "
            "references with `tauscope references` and compare drafters on that file only"
        )


def check_stability(
    references: Sequence[Reference],
    records: Sequence[PromptRecord],
    source: ReferenceSource,
    *,
    num_asked: int,
    progress: Progress,
) -> Stability:
    """Ask again for some first turns, spread over the set.

    Args:
        references: what was answered.
        records: the prompts, for servers that take messages.
        source: the same server.
        num_asked: how many to ask for again.
        progress: told of every answer.

    Raises:
        TauscopeError: a failure of the server.
    """
    first_turns = [reference for reference in references if reference.turn == 1]
    prompts = {record.id: record for record in records}
    num = min(num_asked, len(first_turns))
    sample = [first_turns[at * len(first_turns) // num] for at in range(num)]
    progress.start(STAGE, num)
    unrepeated = []
    for reference in sample:
        record = prompts[reference.conversation]
        again = source.complete(
            Turn(
                id=reference.id,
                prompt_ids=reference.prompt_ids,
                messages=record.messages,
                text=record.text,
                template_kwargs=reference.template_kwargs,
                max_new_tokens=reference.max_new_tokens,
                stop_token_ids=reference.stop_token_ids,
                sampling=TextSampling(
                    temperature=reference.temperature,
                    top_k=reference.top_k,
                    top_p=reference.top_p,
                    seed=reference.seed or 0,
                ),
            )
        ).response_ids
        if again != reference.response_ids:
            unrepeated.append(Unrepeated(reference.id, _first_difference(again, reference.response_ids)))
        progress.advance(STAGE)
    return Stability(num, tuple(unrepeated))


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))
