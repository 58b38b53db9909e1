"""Prompts of a training: read from a JSONL file, rendered with the target's own chat template."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

BUNDLED = Path(__file__).with_name("prompts.jsonl")
"""Written for this; not those of ``bundled:mixed``, so that an evaluation on those is one on unseen prompts."""
TRAIN = "train"
HELDOUT_SHARE = 10
"""One prompt in so many is held out, and at least one, when the file does not say which."""


class Prompts(NamedTuple):
    """Conversations to answer.

    Attributes:
        train: Messages of each prompt that the drafter is trained on.
        heldout: Messages of each prompt that only tau is measured on.
        sha256: Of the file.
    """

    train: list[list[dict[str, str]]]
    heldout: list[list[dict[str, str]]]
    sha256: str


def read_prompts(path: Path) -> Prompts:
    """Read a prompts file of this project.

    A line is an object with ``messages`` (a list of ``role`` and ``content``) or ``text``. Lines whose ``split`` is
    ``train`` are trained on and all others held out; when no line says ``train``, the last tenth is held out.

    Raises:
        ValueError: a line is no such object, or nothing is left to train on.
    """
    data = path.read_bytes()
    lines = [(n, line) for n, line in enumerate(data.decode().splitlines(), 1) if line.strip()]
    found = [(value.get("split"), messages_of(value, f"{path}, line {n}")) for n, value in _objects(path, lines)]
    if any(split == TRAIN for split, _ in found):
        train = [messages for split, messages in found if split == TRAIN]
        heldout = [messages for split, messages in found if split != TRAIN]
    else:
        cut = len(found) - max(1, len(found) // HELDOUT_SHARE)
        train = [messages for _, messages in found[:cut]]
        heldout = [messages for _, messages in found[cut:]]
    if not train:
        raise ValueError(f"{path}: {len(found)} prompts leave none to train on; two are the least")
    return Prompts(train, heldout, hashlib.sha256(data).hexdigest())


def _objects(path: Path, lines: list[tuple[int, str]]) -> list[tuple[int, dict[str, Any]]]:
    out = []
    for number, line in lines:
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: no JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path}, line {number}: {type(value).__name__}, expected an object")
        out.append((number, value))
    return out


def messages_of(value: dict[str, Any], where: str) -> list[dict[str, str]]:
    """Messages of one line; ``text`` is one message of the user.

    Raises:
        ValueError: there are none, or one has no text.
    """
    messages = value.get("messages", [{"role": "user", "content": value.get("text")}])
    is_good = isinstance(messages, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    )
    if not messages or not is_good:
        raise ValueError(f"{where}: needs messages with role and content, or text")
    return [{"role": m["role"], "content": m["content"]} for m in messages]


def encode(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Ids of a prompt, up to where the answer begins; without a chat template the last message as it is."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(messages[-1]["content"]))
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))
