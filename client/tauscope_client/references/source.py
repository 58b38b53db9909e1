"""What every source of references does, and what it is given and gives back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tauscope_client.references.record import FinishReason, Served
from tauscope_client.references.sampling import GREEDY, TextSampling
from tauscope_wire.messages import Message

__all__ = ["Completion", "ReferenceSource", "TokenBridge", "Turn"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One completion to fetch.

    Attributes:
        id: the turn's name.
        prompt_ids: the rendered prompt.
        messages: the same prompt before rendering, None for raw text; for servers that take no ids.
        text: the raw text, None for messages.
        template_kwargs: options of the chat template, as given to the target service.
        max_new_tokens: length limit.
        tail_tokens: greedy tokens wanted after the end.
        stop_token_ids: ids that end the text.
        sampling: how tokens are chosen; a sampled text has no tail, because it would be one of many.
    """

    id: str
    prompt_ids: Sequence[int]
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    max_new_tokens: int
    tail_tokens: int = 0
    stop_token_ids: Sequence[int]
    sampling: TextSampling = GREEDY


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The answer of a source; fields as in `Reference`.

    Attributes:
        seed: of a text stored before, else None.
        cached_tokens: prompt tokens that the server found in its prefix cache, None when it does not say.
    """

    response_ids: list[int]
    finish_reason: FinishReason
    tail_ids: list[int] = field(default_factory=list)
    drift: str = ""
    served: Served | None = None
    seed: int | None = None
    cached_tokens: int | None = None


class TokenBridge(Protocol):
    """Text to ids and back, by the target service: for servers that answer with text only."""

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, no template and no special tokens added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens visible."""
        ...


class ReferenceSource(Protocol):
    """A server (or a file) that knows the target's answers."""

    @property
    def name(self) -> str:
        """`sglang`, `openai`, `target` or `file`."""
        ...

    def facts(self) -> dict[str, Any]:
        """Which server, version and model answers; contacts it on the first call.

        Raises:
            UnreachableError: no such server.
            MismatchError: a server of another kind.
        """
        ...

    def complete(self, turn: Turn) -> Completion:
        """Fetch one completion; safe to call from several threads.

        Raises:
            TauscopeError: whatever went wrong, after retries.
        """
        ...
