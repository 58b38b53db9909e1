"""Lines of a data set: references, ids with a mask, conversations with their answers, raw text.

The file is read line by line and may be larger than the memory. A line is one of:

- a reference (`prompt_ids`, `response_ids`), as `tauscope references` writes it: the response counts for the loss;
- ids (`input_ids` or `token_ids`), with a `loss_mask` of the same length or the `response_start`;
- `messages`, or ShareGPT `conversations`: the turns of the assistant count for the loss;
- `text`: no token counts.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tauscope_client.prompts import PromptFileError
from tauscope_wire.messages import Message

__all__ = ["Text", "TextError", "read_texts", "text_of"]

MAX_LINE_BYTES = 64 << 20
"""A line of a million tokens has a tenth of that."""
_ROLES = {"human": "user", "gpt": "assistant"}


class TextError(ValueError):
    """A line that cannot be used; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """One line: exactly one of `token_ids`, `messages` and `text` is given.

    Attributes:
        id: the line's own, or made of its number.
        token_ids: ids; `loss_mask` of the same length goes with them.
        messages: a conversation.
        text: raw text.
    """

    id: str
    token_ids: tuple[int, ...] | None = None
    loss_mask: tuple[int, ...] | None = None
    messages: tuple[Message, ...] | None = None
    text: str | None = None


def read_texts(path: Path) -> Iterator[tuple[int, str, Text | TextError]]:
    """Number, id and content of every line that is not blank.

    Raises:
        PromptFileError: the file cannot be read, holds no JSON lines, or an id comes twice.
    """
    seen: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                if not raw.strip():
                    continue
                name, text = _parse(path, number, raw)
                if name in seen:
                    raise PromptFileError(
                        f"{path}:{number}: id {name!r} was already used at line {seen[name]}; ids are unique"
                    )
                seen[name] = number
                yield number, name, text
    except OSError as error:
        raise PromptFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not seen:
        raise PromptFileError(f"{path}: holds no texts")


def _parse(path: Path, number: int, raw: bytes) -> tuple[str, Text | TextError]:
    fallback = f"line-{number:08d}"
    try:
        value = json.loads(raw)
    except ValueError as error:
        where = "one JSON object a line is expected (a JSON array becomes that with: jq -c '.[]')"
        raise PromptFileError(f"{path}:{number}: not JSON; {where}") from error
    if not isinstance(value, dict):
        raise PromptFileError(f"{path}:{number}: not a JSON object; one object a line is expected")
    name = value.get("id", fallback)
    name = str(name) if isinstance(name, str | int) and str(name).strip() else fallback
    try:
        return name, text_of(value, name)
    except TextError as error:
        return name, error


def text_of(value: Mapping[str, Any], name: str) -> Text:
    """Read one object.

    Raises:
        TextError: none of the known kinds, or a field of the wrong shape.
    """
    if "response_ids" in value:
        prompt, answer = _ids(value, "prompt_ids"), _ids(value, "response_ids")
        return Text(id=name, token_ids=prompt + answer, loss_mask=(0,) * len(prompt) + (1,) * len(answer))
    for key in ("input_ids", "token_ids"):
        if key in value:
            ids = _ids(value, key)
            return Text(id=name, token_ids=ids, loss_mask=_mask(value, len(ids)))
    if "messages" in value or "conversations" in value:
        return Text(id=name, messages=_messages(value))
    if isinstance(value.get("text"), str) and value["text"]:
        return Text(id=name, text=value["text"])
    keys = ", ".join(sorted(map(str, value))[:8]) or "none"
    raise TextError(f"needs one of response_ids, input_ids, messages, conversations, text; its keys are: {keys}")


def _ids(value: Mapping[str, Any], key: str) -> tuple[int, ...]:
    ids = value.get(key)
    if not isinstance(ids, list) or not ids or not all(type(one) is int and one >= 0 for one in ids):
        raise TextError(f"{key}: expected a list of token ids")
    return tuple(ids)


def _mask(value: Mapping[str, Any], length: int) -> tuple[int, ...]:
    if "loss_mask" in value:
        mask = value["loss_mask"]
        if not isinstance(mask, list) or len(mask) != length or not all(one in (0, 1) for one in mask):
            raise TextError(f"loss_mask: expected {length} values 0 or 1, one for each id")
        return tuple(int(one) for one in mask)
    start = value.get("response_start", length)
    if type(start) is not int or not 0 <= start <= length:
        raise TextError(f"response_start={start!r}: expected 0..{length}")
    return (0,) * start + (1,) * (length - start)


def _messages(value: Mapping[str, Any]) -> tuple[Message, ...]:
    key = "messages" if "messages" in value else "conversations"
    turns = value[key]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise TextError(f"{key}: expected a list of turns")
    messages = []
    for index, turn in enumerate(turns):
        role = str(turn.get("role", turn.get("from")))
        content = turn.get("content", turn.get("value"))
        try:
            messages.append(Message.model_validate({"role": _ROLES.get(role, role), "content": content}))
        except ValidationError as error:
            raise TextError(f"{key}[{index}]: {error.errors()[0]['msg']}") from error
    return tuple(messages)
