"""Reads `--reference` and opens the source that it names."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.retries import Retries
from tauscope_client.references.sglang import SglangSource
from tauscope_client.references.source import ReferenceSource
from tauscope_client.references.stored import StoredSource
from tauscope_client.target import TargetClient
from tauscope_wire.errors import RequestError

__all__ = ["REFERENCE_HELP", "ReferenceChoice", "parse_reference"]

Kind = Literal["target", "sglang", "openai", "file"]

REFERENCE_HELP = (
    "Where the target's answers come from: target (the target service itself), sglang=URL (SGLang's /generate, exact "
    "token ids), openai=URL (vLLM and any other OpenAI-compatible server), file=PATH (a frozen references.jsonl)."
)


@dataclass(frozen=True, repr=False)
class ReferenceChoice:
    """One source: its kind, its address or path, and access to it."""

    kind: Kind
    value: str = ""
    model: str | None = None
    key: str | None = None

    @contextmanager
    def open(
        self, target: TargetClient, *, retries: Retries | None = None, deadline_s: float | None = None
    ) -> Iterator[ReferenceSource]:
        """The source, ready to be asked.

        Args:
            target: turns text into ids and back, or is the source itself.
            retries: how to try again.
            deadline_s: how long one answer of the target service may take, None for its own bound.

        Raises:
            RequestError: an address or a file that cannot be used.
        """
        if self.kind == "target":
            yield EmbeddedSource(target, retries=retries, deadline_s=deadline_s)
        elif self.kind == "file":
            yield StoredSource(Path(self.value))
        else:
            http = EngineHttp(self.value, key=self.key, retries=retries)
            try:
                if self.kind == "sglang":
                    yield SglangSource(http, target, model=self.model)
                else:
                    yield OpenAISource(http, target, model=self.model)
            finally:
                http.close()


def parse_reference(text: str, *, model: str | None = None, key: str | None = None) -> ReferenceChoice:
    """Read `target`, `sglang=URL`, `openai=URL` or `file=PATH`.

    Raises:
        RequestError: anything else.
    """
    kind, equals, value = text.partition("=")
    if kind == "target" and not equals:
        return ReferenceChoice("target")
    if kind == "sglang" and value:
        return ReferenceChoice("sglang", value, model, key)
    if kind == "openai" and value:
        return ReferenceChoice("openai", value, model, key)
    if kind == "file" and value:
        return ReferenceChoice("file", value)
    raise RequestError(f"--reference {text!r}: expected target, sglang=URL, openai=URL or file=PATH")
