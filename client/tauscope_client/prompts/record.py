"""One prompt, or one conversation, as it stands in a prompts file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tauscope_wire.messages import Message, TokenizeRequest

__all__ = ["DEFAULT_SPLIT", "PromptRecord"]

DEFAULT_SPLIT = "all"
"""Split of a prompt whose file names none."""


@dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """One prompt: either chat messages or raw text.

    Attributes:
        id: name of the prompt, unique in its file.
        messages: conversation up to and including the first user turn, or None for raw text.
        text: raw text that no chat template touches, or None.
        follow_ups: further user turns; each is asked after the model's own answer to the one before.
        split: `train`, `fresh`, or whatever the file says.
        tags: every other plain field of the record (category, language, ...), as text.
        prompt_ids: ids that the rendered first turn must have, when the file pins them.
    """

    id: str
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    follow_ups: tuple[str, ...] = ()
    split: str = DEFAULT_SPLIT
    tags: Mapping[str, str] = field(default_factory=dict)
    prompt_ids: tuple[int, ...] | None = None

    def first_turn(self, template_kwargs: Mapping[str, Any]) -> TokenizeRequest:
        """Request that renders the first turn."""
        if self.messages is None:
            return TokenizeRequest(text=self.text)
        return TokenizeRequest(messages=list(self.messages), template_kwargs=dict(template_kwargs))

    def later_turn(self, answers: Sequence[str], template_kwargs: Mapping[str, Any]) -> TokenizeRequest:
        """Request that renders the turn after `answers`, the decoded answers to all turns before it."""
        return TokenizeRequest(messages=list(self.history(answers)), template_kwargs=dict(template_kwargs))

    def history(self, answers: Sequence[str]) -> tuple[Message, ...]:
        """Messages up to the user turn that follows `answers`; without answers the first turn."""
        messages = list(self.messages or ())
        for answer, question in zip(answers, self.follow_ups, strict=False):
            messages += [Message(role="assistant", content=answer), Message(role="user", content=question)]
        return tuple(messages)

    def turn_id(self, turn: int) -> str:
        """Name of one turn, counted from 1: the first keeps the prompt's own id."""
        return self.id if turn == 1 else f"{self.id}@{turn}"
