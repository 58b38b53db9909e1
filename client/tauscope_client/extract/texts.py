"""Entries of a data set: references, ids with a mask, conversations with their answers, raw text.

The file holds JSON lines or one JSON array; it is read piece by piece and may be larger than the memory. An entry is:

- a reference (`prompt_ids`, `response_ids`), as `tauscope references` writes it: the response counts for the loss;
- ids (`input_ids` or `token_ids`), with a `loss_mask` of the same length or the `response_start`;
- a bare list of ids: no token counts;
- `messages`, or ShareGPT `conversations`: the turns of the assistant count for the loss;
- `text`: no token counts.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tauscope_client.extract.json_array import ArrayError, array_elements
from tauscope_client.prompts import PromptFileError
from tauscope_wire.messages import Message

__all__ = ["Text", "TextError", "read_texts", "text_of"]

MAX_LINE_BYTES = 64 << 20
"""A line of a million tokens has a tenth of that."""
BOM = b"\xef\xbb\xbf"
EXPECTED = "one JSON object or list of ids a line is expected, or one JSON array of them"
_IDS = re.compile(rb"\[[\s\d,]*\d[\s\d,]*\]")
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
    """Line, id and content of every entry.

    Raises:
        PromptFileError: the file cannot be read, holds neither JSON lines nor a JSON array, or an id comes twice.
    """
    seen: dict[str, int] = {}
    try:
        for number, value in _array(path) if _is_array(path) else _lines(path):
            name, text = _entry(number, value)
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


def _is_array(path: Path) -> bool:
    """Whether the whole file is one array; a first line that is a list of ids by itself is an entry."""
    with path.open("rb") as file:
        first = b"\n"
        while first and not first.strip():
            first = file.readline(MAX_LINE_BYTES)
    first = first.removeprefix(BOM).strip()
    return first.startswith(b"[") and _IDS.fullmatch(first) is None


def _array(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            # Several entries may begin in one line, and names come from lines: elements are numbered instead.
            for number, (_, value) in enumerate(array_elements(file, max_chars=MAX_LINE_BYTES), start=1):
                yield number, value
        except ArrayError as error:
            raise PromptFileError(f"{path}:{error.line}: {error}; {EXPECTED}") from error
        except UnicodeDecodeError as error:
            raise PromptFileError(f"{path}: not UTF-8 text; {EXPECTED}") from error


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
            if not raw.removeprefix(BOM).strip():
                continue
            try:
                value = json.loads(raw.removeprefix(BOM))
            except (ValueError, RecursionError) as error:
                raise PromptFileError(f"{path}:{number}: not JSON; {EXPECTED}") from error
            yield number, value


def _entry(number: int, value: Any) -> tuple[str, Text | TextError]:
    name = f"line-{number:08d}"
    if isinstance(value, list):
        value = {"token_ids": value}
    if not isinstance(value, dict):
        return name, TextError(f"{type(value).__name__}: {EXPECTED}")
    given = value.get("id")
    if isinstance(given, str | int) and str(given).strip():
        name = str(given)
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
