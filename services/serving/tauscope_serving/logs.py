"""Structured logs: one JSON object a line on standard error. Set up by the command line, never at import."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

from tauscope_wire.errors import TauscopeError

_SAFE_MESSAGES = (TauscopeError, OSError, MemoryError, RuntimeError)
"""Exceptions whose message is logged: they speak of files, sockets and devices. Those of others (a KeyError, a
validation error, a template error) may quote the input, and the input is somebody's prompt."""

MAX_MESSAGE_CHARS = 500


def _without_values(error: BaseException | None) -> str:
    """Traceback with types and places; messages only where they cannot quote a prompt."""
    parts: list[str] = []
    while error is not None:
        message = f": {error}"[:MAX_MESSAGE_CHARS] if isinstance(error, _SAFE_MESSAGES) else ""
        frames = "".join(traceback.format_tb(error.__traceback__))
        parts.append(f"{frames}{type(error).__module__}.{type(error).__qualname__}{message}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\ncaused by:\n".join(parts)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object; fields given as `extra={"fields": {...}}` are merged in."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = _without_values(record.exc_info[1])
        return json.dumps({k: v for k, v in line.items() if v is not None}, default=str)


def set_up_logs(level: str, *, stream: TextIO | None = None) -> None:
    """Send all logs of the process to `stream` (standard error) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").disabled = True  # RequestRecord writes the line, without query strings
    logging.getLogger("httpx").setLevel(logging.WARNING)
