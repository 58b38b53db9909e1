"""Recorded answers of real engines: their form on disk, and a transport that plays them back.

`tests/vectors/engines/ENGINE/CASE.json` holds one conversation with one server: every request in order and what the
server really answered. `engines.record` writes them; the fast tests of the client's sources read them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engines.layout import VECTORS

__all__ = ["Exchange", "RecordedBridge", "RecordedTransport", "Recording", "load", "recordings"]


@dataclass(frozen=True)
class Exchange:
    """One request and its real answer.

    Attributes:
        status: 0 when the connection broke instead; `answer` then names the exception of httpx.
        answer: parsed JSON, or text when the server sent something else.
    """

    method: str
    path: str
    body: Any
    status: int
    headers: dict[str, str]
    answer: Any

    def response(self) -> httpx.Response:
        """The answer as the server sent it, but for white space inside JSON.

        Raises:
            httpx.TransportError: the connection broke when this was recorded.
        """
        if self.status == 0:
            raise getattr(httpx, self.answer)("recorded")
        content = self.answer if isinstance(self.answer, str) else json.dumps(self.answer)
        return httpx.Response(self.status, headers=self.headers, content=content.encode())


@dataclass(frozen=True)
class Recording:
    """One case of one engine."""

    engine: str
    case: str
    about: str
    versions: dict[str, str]
    options: list[str]
    exchanges: tuple[Exchange, ...]
    turn: dict[str, Any] | None
    texts: dict[str, list[int]]

    @property
    def last(self) -> Exchange:
        """The exchange a case is about; earlier ones led there."""
        return self.exchanges[-1]


class RecordedBridge:
    """The tokenizer's answers of the time of recording; a text or ids that did not occur then are an error."""

    def __init__(self, recording: Recording) -> None:
        self._ids = recording.texts
        self._texts = {tuple(ids): text for text, ids in recording.texts.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of raw text."""
        return list(self._ids[text])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return self._texts[tuple(ids)]


class RecordedTransport(httpx.BaseTransport):
    """Answers as the recorded server did: same method and path, in the recorded order for each of them.

    `unplayed` says what was recorded and not asked for; `differences` lists requests whose body is not the recorded
    one, so that a client that changed what it sends is noticed.
    """

    def __init__(self, recording: Recording) -> None:
        self._waiting = list(recording.exchanges)
        self.differences: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Play the next exchange of this method and path; 404 for a route that was never asked while recording."""
        body = json.loads(request.content) if request.content else None
        for exchange in self._waiting:
            if (exchange.method, exchange.path) == (request.method, request.url.raw_path.decode()):
                self._waiting.remove(exchange)
                if exchange.body != body:
                    self.differences.append(f"{exchange.method} {exchange.path}: {_difference(exchange.body, body)}")
                return exchange.response()
        self.differences.append(f"{request.method} {request.url.raw_path.decode()}: not recorded")
        return httpx.Response(404, json={"detail": "Not Found"})

    @property
    def unplayed(self) -> list[str]:
        """Recorded exchanges that nobody asked for."""
        return [f"{exchange.method} {exchange.path}" for exchange in self._waiting]


def load(engine: str, case: str) -> Recording:
    """Read one recording."""
    return _read(VECTORS / engine / f"{case}.json")


def recordings(engine: str | None = None) -> Iterator[Recording]:
    """Every recording, of one engine or of all, in a stable order."""
    for path in sorted(VECTORS.glob(f"{engine or '*'}/*.json")):
        yield _read(path)


def _read(path: Path) -> Recording:
    found = json.loads(path.read_text())
    exchanges = tuple(
        Exchange(
            **one["request"],
            status=one["answer"]["status"],
            headers=one["answer"]["headers"],
            answer=one["answer"]["body"],
        )
        for one in found["exchanges"]
    )
    names = ("engine", "case", "about", "versions", "options", "turn", "texts")
    return Recording(**{name: found[name] for name in names}, exchanges=exchanges)


def _difference(recorded: Any, sent: Any) -> str:
    if not isinstance(recorded, dict) or not isinstance(sent, dict):
        return f"recorded {recorded!r:.200}, sent {sent!r:.200}"
    keys = sorted(key for key in recorded.keys() | sent.keys() if recorded.get(key) != sent.get(key))
    return "; ".join(f"{key}: recorded {recorded.get(key)!r:.80}, sent {sent.get(key)!r:.80}" for key in keys)
