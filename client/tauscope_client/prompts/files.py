"""Reads a prompts file: which format, which line, which ids; every malformed line is named."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tauscope_client.prompts.formats import RecordError, plain_text, record_of
from tauscope_client.prompts.record import PromptRecord
from tauscope_wire.errors import ErrorCode, RequestError

__all__ = ["PromptFile", "PromptFileError", "find_prompts", "load_prompts"]

MAX_FILE_BYTES = 1 << 30
"""A prompts file larger than this is a data set, not a set of prompts; refused before it fills the memory."""

MAX_PROBLEMS_SHOWN = 20

BUNDLED = "bundled:"
SETS = Path(__file__).with_name("sets")
"""Prompt sets that come with the package."""


class PromptFileError(RequestError):
    """A prompts file that cannot be used; the message has one `file:line: reason` for each problem."""


@dataclass(frozen=True)
class PromptFile:
    """The prompts of a file, in its order, and the hash of its bytes."""

    path: Path
    sha256: str
    records: tuple[PromptRecord, ...]


@dataclass(frozen=True)
class _Entry:
    line: int
    value: Any
    is_plain: bool = False


def load_prompts(path: Path) -> PromptFile:
    """Read prompts from JSONL, a JSON array (ShareGPT), or plain text (`.txt`, one user message a line).

    Raises:
        PromptFileError: no such file, not text, no prompts, malformed lines, or an id that comes twice.
    """
    raw = _read(path)
    text = _decode(path, raw)
    records: list[PromptRecord] = []
    lines: dict[str, int] = {}
    problems: list[str] = []
    for entry in _entries(path, text, problems):
        try:
            name = f"line-{entry.line:05d}"
            record = (
                plain_text(entry.value, fallback_id=name)
                if entry.is_plain
                else record_of(entry.value, fallback_id=name)
            )
        except RecordError as error:
            problems.append(f"{path}:{entry.line}: {error}")
            continue
        if record.id in lines:
            problems.append(
                f"{path}:{entry.line}: id {record.id!r} was already used at line {lines[record.id]}; ids are unique"
            )
            continue
        lines[record.id] = entry.line
        records.append(record)
    if problems:
        raise _problem_error(problems)
    if not records:
        raise PromptFileError(f"{path}: holds no prompts", ErrorCode.EMPTY_PROMPT)
    return PromptFile(path=path, sha256=hashlib.sha256(raw).hexdigest(), records=tuple(records))


def find_prompts(name: str) -> Path:
    """The path that a user means: a file, or `bundled:NAME` for a set that comes with tauscope.

    Raises:
        PromptFileError: no such set; names those there are.
    """
    if not name.startswith(BUNDLED):
        return Path(name)
    path = SETS / f"{name.removeprefix(BUNDLED)}.jsonl"
    known = sorted(one.stem for one in SETS.glob("*.jsonl"))
    if path.stem not in known:
        raise PromptFileError(
            f"{name}: no such set of prompts; bundled are: {', '.join(BUNDLED + one for one in known)}"
        )
    return path


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise PromptFileError(f"{path}: {size} bytes; a prompts file may have {MAX_FILE_BYTES}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise PromptFileError(f"{path}: no such file") from error
    except OSError as error:
        raise PromptFileError(f"{path}: cannot be read ({error.strerror or error})") from error


def _decode(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise PromptFileError(f"{path}:{line}: not UTF-8 text (byte {error.start})") from error


def _entries(path: Path, text: str, problems: list[str]) -> Iterator[_Entry]:
    if path.suffix == ".txt":
        for line, content in enumerate(text.split("\n"), start=1):
            if content.strip():
                yield _Entry(line, content.rstrip("\r"), is_plain=True)
    elif text.lstrip().startswith("["):
        yield from _array(path, text, problems)
    else:
        # Only "\n" ends a line: U+2028 and the like are legal inside a JSON string.
        for line, content in enumerate(text.split("\n"), start=1):
            if not content.strip():
                continue
            try:
                yield _Entry(line, json.loads(content))
            except json.JSONDecodeError as error:
                problems.append(f"{path}:{line}: not JSON: {error.msg} at column {error.colno}")


def _array(path: Path, text: str, problems: list[str]) -> Iterator[_Entry]:
    """Elements of a JSON array, each with the line it starts at."""
    decoder = json.JSONDecoder()
    at = text.index("[") + 1
    line, counted = text.count("\n", 0, at) + 1, at
    try:
        while True:
            at = _skip(text, at)
            if text[at : at + 1] == "]":
                return
            line += text.count("\n", counted, at)
            counted = at
            value, at = decoder.raw_decode(text, at)
            yield _Entry(line, value)
            at = _skip(text, at)
            if text[at : at + 1] not in {",", "]"}:
                raise json.JSONDecodeError("expected ',' or ']'", text, at)
            at += text[at] == ","
    except json.JSONDecodeError as error:
        problems.append(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _problem_error(problems: list[str]) -> PromptFileError:
    shown = problems[:MAX_PROBLEMS_SHOWN]
    rest = len(problems) - len(shown)
    if rest:
        shown.append(f"and {rest} more")
    is_empty = all("the prompt is empty" in problem for problem in problems)
    code = ErrorCode.EMPTY_PROMPT if is_empty else ErrorCode.INVALID_REQUEST
    return PromptFileError("\n".join(shown), code, details={"num_problems": len(problems)})
