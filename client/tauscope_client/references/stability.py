"""Does the server repeat itself? Asks for a sample of the references again, cold and warm, and compares the ids.

Cold: the prompt is computed from its start. Warm: it was asked a moment ago, and stands in the server's prefix cache,
where hybrid models have answered differently. A server is made cold by emptying its cache, which costs everybody else
who uses it, so that is done only when allowed; otherwise the answer of the run stands for the cold one, and the server
is asked twice, the second time at once after the first.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptRecord
from tauscope_client.references.record import Reference
from tauscope_client.references.sampling import TextSampling
from tauscope_client.references.source import ReferenceSource, Turn

__all__ = ["STAGE", "Flushable", "Stability", "Unrepeated", "check_stability", "turn_of"]

STAGE = "repeats"

Asked = Literal["cold", "again", "warm"]
"""After the cache was emptied; once more; and once more at once after that."""


@runtime_checkable
class Flushable(Protocol):
    """A source whose server can be told to forget what it has computed."""

    def flush_cache(self) -> bool:
        """Empty the server's prefix cache; whether it did."""
        ...


@dataclass(frozen=True)
class Unrepeated:
    """An answer that came back otherwise.

    Attributes:
        id: the turn.
        position: response position of the first token that differs from the answer of the run.
        asked: how it was asked for.
    """

    id: str
    position: int
    asked: Asked


@dataclass(frozen=True)
class Stability:
    """What asking again gave.

    Attributes:
        num_asked: references asked for again, twice each.
        is_flushed: the server's cache was emptied before each; otherwise the answer of the run stands for the cold one.
        cached_tokens: prompt tokens that the server found in its cache, by how it was asked; None when it does not say.
        unrepeated: answers that came back otherwise.
    """

    num_asked: int
    is_flushed: bool
    cached_tokens: dict[str, int | None]
    unrepeated: tuple[Unrepeated, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "unrepeated": [asdict(one) for one in self.unrepeated], "words": self.words}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Stability":
        """The inverse of `to_dict`."""
        found = {name: value[name] for name in ("num_asked", "is_flushed", "cached_tokens")}
        return cls(**found, unrepeated=tuple(Unrepeated(**one) for one in value["unrepeated"]))

    @property
    def words(self) -> str:
        """What was asked and what came back, for people."""
        ways = [
            f"{_WORDS[how]}{'' if tokens is None else f', {tokens} prompt tokens from its cache'}"
            for how, tokens in self.cached_tokens.items()
        ]
        asked = f"{self.num_asked} answers were asked for twice more ({'; '.join(ways)})"
        if not self.unrepeated:
            return f"{asked}: all came back the same"
        differing = [
            f"{sum(one.asked == how for one in self.unrepeated)} otherwise {how}"
            for how in self.cached_tokens
            if any(one.asked == how for one in self.unrepeated)
        ]
        return f"{asked}: {' and '.join(differing)}"

    def caution(self) -> str | None:
        """What a reader must know, None when everything was repeated."""
        if not self.unrepeated:
            return None
        first = self.unrepeated[0]
        return (
            f"the reference server does not repeat itself: {self.words} ({first.id!r} from token {first.position} on); "
            "use a deterministic server, or freeze the references with `tauscope references` and compare drafters on "
            "that file only"
        )


_WORDS: dict[str, str] = {
    "cold": "cold, its cache emptied before",
    "again": "again, after the answers of the run",
    "warm": "warm, at once after that",
}


def check_stability(
    references: Sequence[Reference],
    records: Sequence[PromptRecord],
    source: ReferenceSource,
    *,
    num_asked: int,
    progress: Progress,
    may_flush: bool = False,
) -> Stability:
    """Ask twice for some first turns, spread over the set: cold (where that is allowed and possible) and warm.

    Args:
        references: what was answered.
        records: the prompts, for servers that take messages.
        source: the same server.
        num_asked: how many to ask for again.
        progress: told of every answer.
        may_flush: empty the server's cache before each.

    Raises:
        TauscopeError: a failure of the server.
    """
    first_turns = [reference for reference in references if reference.turn == 1]
    prompts = {record.id: record for record in records}
    num = min(num_asked, len(first_turns))
    sample = [first_turns[at * len(first_turns) // num] for at in range(num)]
    progress.start(STAGE, num)
    unrepeated = []
    is_flushed = may_flush and isinstance(source, Flushable)
    cached: dict[Asked, list[int | None]] = {}
    for reference in sample:
        turn = turn_of(reference, prompts[reference.conversation])
        if is_flushed:
            assert isinstance(source, Flushable)
            is_flushed = source.flush_cache()
        ways: tuple[Asked, ...] = ("cold" if is_flushed else "again", "warm")
        for asked in ways:
            found = source.complete(turn)
            cached.setdefault(asked, []).append(found.cached_tokens)
            if found.response_ids != reference.response_ids:
                position = _first_difference(found.response_ids, reference.response_ids)
                unrepeated.append(Unrepeated(reference.id, position, asked))
        progress.advance(STAGE)
    totals: dict[str, int | None] = {
        asked: None if None in tokens else sum(one for one in tokens if one is not None)
        for asked, tokens in sorted(cached.items(), key=lambda item: item[0] == "warm")
    }
    return Stability(num, is_flushed, totals, tuple(unrepeated))


def turn_of(reference: Reference, record: PromptRecord | None) -> Turn:
    """The request that a first turn was answered for, without its tail.

    Args:
        reference: the answer.
        record: its prompt, for servers that take messages; None when it is not known any more.
    """
    return Turn(
        id=reference.id,
        prompt_ids=reference.prompt_ids,
        messages=None if record is None else record.messages,
        text=None if record is None else record.text,
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


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))
