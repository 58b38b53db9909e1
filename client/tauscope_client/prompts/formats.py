"""One record of each known format: ours, ShareGPT, Spec-Bench / MT-Bench, and a line of plain text.

A format function takes the decoded JSON object and a name to use where it has no id. It raises `RecordError` with what
is wrong; the caller knows the file and the line.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from tauscope_client.prompts.record import DEFAULT_SPLIT, PromptRecord
from tauscope_wire.messages import Message

__all__ = ["RecordError", "plain_text", "record_of"]

_OWN_FIELDS = frozenset({"id", "split", "messages", "text", "follow_ups", "prompt_ids"})
_SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_MAX_SHOWN = 40


class RecordError(ValueError):
    """A record that cannot be a prompt; the text says why."""


def record_of(value: Any, *, fallback_id: str) -> PromptRecord:
    """Read one JSON value as whichever known format its keys say.

    Raises:
        RecordError: not an object, no known key, or a field of the wrong shape.
    """
    if not isinstance(value, dict):
        raise RecordError(f"expected a JSON object, found {_kind(value)}")
    if "messages" in value or "text" in value:
        return _own(value, fallback_id)
    if "turns" in value:
        return _turns(value, fallback_id)
    if "conversations" in value:
        return _sharegpt(value, fallback_id)
    keys = ", ".join(sorted(map(str, value))[:8]) or "none"
    raise RecordError(f"no prompt in it: needs one of messages, text, turns, conversations; its keys are: {keys}")


def plain_text(line: str, *, fallback_id: str) -> PromptRecord:
    """One line of a plain text file: the user's message."""
    return PromptRecord(id=fallback_id, messages=_checked([("user", line)]))


def _own(value: Mapping[str, Any], fallback_id: str) -> PromptRecord:
    if ("messages" in value) == ("text" in value):
        raise RecordError("has both messages and text: give exactly one")
    follow_ups = _strings("follow_ups", value.get("follow_ups", []))
    common: dict[str, Any] = {
        "id": _identifier(value.get("id", fallback_id)),
        "split": _split(value),
        "tags": _tags(value, _OWN_FIELDS),
        "prompt_ids": _ids(value.get("prompt_ids")),
        "follow_ups": follow_ups,
    }
    if "text" in value:
        text = value["text"]
        if not isinstance(text, str):
            raise RecordError(f"text is {_kind(text)}: expected a string")
        if not text:
            raise RecordError("the prompt is empty: text has no characters")
        if follow_ups:
            raise RecordError("follow_ups need messages: raw text has no turns")
        return PromptRecord(text=text, **common)
    turns = value["messages"]
    if not isinstance(turns, list):
        raise RecordError(f"messages is {_kind(turns)}: expected a list of {{role, content}}")
    return PromptRecord(messages=_messages(turns), **common)


def _turns(value: Mapping[str, Any], fallback_id: str) -> PromptRecord:
    turns = _strings("turns", value["turns"])
    if not turns:
        raise RecordError("the prompt is empty: turns has no entries")
    name = value.get("id", value.get("question_id", fallback_id))
    tags = _tags(value, frozenset({"id", "question_id", "turns", "split"}))
    first = _checked([("user", turns[0])])
    _checked(("user", turn) for turn in turns[1:])
    return PromptRecord(id=_identifier(name), messages=first, follow_ups=turns[1:], split=_split(value), tags=tags)


def _sharegpt(value: Mapping[str, Any], fallback_id: str) -> PromptRecord:
    turns = value["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise RecordError("conversations: expected a list of {from, value}")
    system: list[tuple[str, str]] = []
    questions: list[str] = []
    for index, turn in enumerate(turns):
        role = _SHAREGPT_ROLES.get(str(turn.get("from", "")))
        content = turn.get("value")
        if role is None:
            raise RecordError(f"conversations[{index}].from={_short(turn.get('from'))}: known are human, gpt, system")
        if not isinstance(content, str):
            raise RecordError(f"conversations[{index}].value is {_kind(content)}: expected a string")
        if role == "user":
            questions.append(content)
        elif role == "system" and not questions:
            system.append((role, content))
    if not questions:
        raise RecordError("the prompt is empty: conversations has no turn of a human")
    _checked(("user", question) for question in questions)
    tags = _tags(value, frozenset({"id", "conversations", "split"}))
    name = _identifier(value.get("id", fallback_id))
    messages = _checked([*system, ("user", questions[0])])
    return PromptRecord(id=name, messages=messages, follow_ups=tuple(questions[1:]), split=_split(value), tags=tags)


def _messages(turns: list[Any]) -> tuple[Message, ...]:
    pairs: list[tuple[str, str]] = []
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict) or set(turn) - {"role", "content"} or "role" not in turn:
            raise RecordError(f"messages[{index}]: expected an object with role and content")
        if not isinstance(turn.get("content"), str):
            raise RecordError(f"messages[{index}].content is {_kind(turn.get('content'))}: expected a string")
        pairs.append((str(turn["role"]), turn["content"]))
    if not pairs:
        raise RecordError("the prompt is empty: messages has no entries")
    return _checked(pairs)


def _checked(pairs: Iterable[tuple[str, str]]) -> tuple[Message, ...]:
    messages = []
    for index, (role, content) in enumerate(pairs):
        if role == "user" and not content.strip():
            raise RecordError(f"the prompt is empty: user turn {index} has no text")
        try:
            messages.append(Message.model_validate({"role": role, "content": content}))
        except ValidationError as error:
            raise RecordError(f"messages[{index}].role={_short(role)}: {error.errors()[0]['msg']}") from error
    return tuple(messages)


def _identifier(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RecordError(f"id is {_kind(value)}: expected a string or an integer")
    name = str(value)
    if not name or name != name.strip() or any(ord(char) < 32 for char in name):
        raise RecordError(f"id={_short(value)}: expected a name without surrounding spaces or control characters")
    return name


def _split(value: Mapping[str, Any]) -> str:
    split = value.get("split", DEFAULT_SPLIT)
    if not isinstance(split, str) or not split:
        raise RecordError(f"split is {_kind(split)}: expected a name")
    return split


def _tags(value: Mapping[str, Any], known: frozenset[str]) -> dict[str, str]:
    # Plain fields are strata; lists and objects (reference answers, annotations) are not.
    return {
        str(key): str(field).lower() if isinstance(field, bool) else str(field)
        for key, field in value.items()
        if key not in known and isinstance(field, (str, int, float, bool))
    }


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RecordError(f"{name}: expected a list of strings")
    return tuple(value)


def _ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(type(item) is int and item >= 0 for item in value):
        raise RecordError("prompt_ids: expected a list of token ids")
    return tuple(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true/false", type(None): "missing or null"}
    return names.get(type(value), "a number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
