"""A transport that keeps every request and answer, and the small client that the recorded cases are written with."""

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from engines.bridge import LocalBridge
from engines.layout import ENGINES, MODELS, SMOLLM2
from engines.prompts import messages
from engines.servers import Server
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.retries import Retries
from tauscope_client.references.sglang import SglangSource
from tauscope_client.references.source import ReferenceSource, Turn
from tauscope_wire.errors import TauscopeError

__all__ = ["Asker", "KeepingTransport"]

KEPT_HEADERS: Final = ("content-type", "retry-after")
TIMEOUT_S: Final = 600.0
STOP_IDS: Final = (2,)
"""`<|im_end|>`, the only stop id of SmolLM2's generation configuration."""


class KeepingTransport(httpx.BaseTransport):
    """Passes requests on and keeps what went both ways, without this machine's paths."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.exchanges: list[dict[str, Any]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One exchange; the whole answer is read here."""
        try:
            response = self._inner.handle_request(request)
            response.read()
        except httpx.TransportError as error:
            self._keep(request, status=0, headers={}, body=type(error).__name__)
            raise
        is_json = response.headers.get("content-type", "").startswith("application/json")
        whole = response.text if request.url.path != "/metrics" else _without_buckets(response.text)
        text = _without_places(whole)
        try:
            body: Any = json.loads(text) if is_json else text
        except json.JSONDecodeError:
            body = text
        if request.url.path == "/openapi.json" and isinstance(body, dict):
            body = {"info": body.get("info")}  # the rest is long, and no part of what the server says of itself
        headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        self._keep(request, status=response.status_code, headers=headers, body=body)
        return response

    def _keep(self, request: httpx.Request, *, status: int, headers: dict[str, str], body: Any) -> None:
        asked = {
            "method": request.method,
            "path": request.url.raw_path.decode(),
            "body": json.loads(_without_places(request.content.decode())) if request.content else None,
        }
        self.exchanges.append({"request": asked, "answer": {"status": status, "headers": headers, "body": body}})


def _without_places(text: str) -> str:
    """Without the folders of the machine that records."""
    return text.replace(str(MODELS), "/models").replace(str(ENGINES), "/engines")


def _without_buckets(metrics: str) -> str:
    """Counters and gauges of the engine, without the many buckets of histograms and the figures of its Python."""
    unused = ("# ", "python_", "process_", "http_")
    kept = [line for line in metrics.splitlines() if "_bucket{" not in line and not line.startswith(unused)]
    return "\n".join(kept) + "\n"


@dataclass
class Asker:
    """What a recorded case may do with a server."""

    server: Server
    bridge: LocalBridge = field(default_factory=lambda: LocalBridge(SMOLLM2))
    key: str | None = None
    transport: KeepingTransport = field(default_factory=KeepingTransport)
    turn: Turn | None = None

    def get(self, path: str) -> httpx.Response:
        """GET without the client."""
        return self._client().get(path)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """POST without the client."""
        return self._client().post(path, json=body)

    def prompt_ids(self, name: str) -> list[int]:
        """Ids of a prompt of `engines.prompts`, rendered."""
        return self.bridge.prompt_ids(name)

    def source(self) -> ReferenceSource:
        """The client's own source for this engine."""
        http = EngineHttp(self.server.url, key=self.key, transport=self.transport, retries=Retries(attempts=1))
        return (
            SglangSource(http, self.bridge) if self.server.engine.name == "sglang" else OpenAISource(http, self.bridge)
        )

    def complete(
        self,
        name: str,
        *,
        max_new_tokens: int,
        tail_tokens: int = 0,
        repeat: int = 1,
        template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """What the client asks for one prompt: facts first, then the completion. A refusal is recorded as well.

        Args:
            name: of the prompt.
            max_new_tokens: length limit.
            tail_tokens: tokens wanted past the end.
            repeat: put the prompt's text this many times in a row, to overflow the context.
            template_kwargs: options of the chat template.
        """
        kwargs = dict(template_kwargs or {})
        self.turn = Turn(
            id=name,
            prompt_ids=self.bridge.prompt_ids(name, repeat=repeat, **kwargs),
            messages=messages(name, repeat=repeat),
            template_kwargs=kwargs,
            max_new_tokens=max_new_tokens,
            tail_tokens=tail_tokens,
            stop_token_ids=STOP_IDS,
        )
        # A refusal is among the exchanges; what the client makes of it is what the fast tests claim.
        with contextlib.suppress(TauscopeError):
            source = self.source()
            source.facts()
            source.complete(self.turn)

    def _client(self) -> httpx.Client:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.server.url, transport=self.transport, headers=headers, timeout=TIMEOUT_S)
