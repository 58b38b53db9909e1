"""Ids of a conversation, and which of them the assistant said.

A template renders a conversation; no tokenizer is here, so the service renders prefixes of it. The answer of a turn
begins where the whole text leaves the prompt that asks for this turn, and ends with its first stop id, or where the
text leaves the conversation that ends with this turn. What a template puts between stop and next turn does not count.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

from tauscope_wire.messages import Message

__all__ = ["Loss", "Render", "answered_spans"]

Loss = Literal["assistant", "last", "all"]
"""Which tokens count for the loss: all turns of the assistant, the last one, every token."""

Render = Callable[[Sequence[Message], bool], Sequence[int]]
"""Ids of messages, with or without the prompt that asks for an answer after them."""


def answered_spans(
    messages: Sequence[Message], whole: Sequence[int], render: Render, *, loss: Loss, stop_ids: Collection[int]
) -> tuple[tuple[int, int], ...]:
    """Ranges of the assistant's tokens.

    A template may render an earlier turn in another way than the last one (without its thoughts); where the text leaves
    the prompt of a turn before the turn begins, that turn has no range.

    Args:
        messages: the conversation.
        whole: its ids.
        render: the service's template.
        loss: which turns; `all` is every token.
        stop_ids: the last token of an answer is one of these.
    """
    if loss == "all":
        return ((0, len(whole)),)
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    spans: list[tuple[int, int]] = []
    for turn in turns if loss == "assistant" else turns[-1:]:
        before = render(messages[:turn], False) if turn else ()
        start = _common(whole, render(messages[:turn], True)) if turn else 0
        ended = whole if turn == len(messages) - 1 else render(messages[: turn + 1], False)
        if start < len(before) or _common(whole, before) < len(before):
            continue  # the template rewrote what came before
        bound = _common(whole, ended)
        if bound <= start:  # rewritten since it was the last turn: only a stop id says where it ends
            bound = len(whole)
            if not any(token in stop_ids for token in whole[start:]):
                continue
        stop = next((place + 1 for place in range(start, bound) if whole[place] in stop_ids), bound)
        if start < stop:
            spans.append((start, stop))
    return tuple(spans)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
