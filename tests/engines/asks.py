"""Small things that the integration tests do with a server through the client."""

from engines.asking import STOP_IDS
from engines.bridge import LocalBridge
from engines.prompts import messages
from engines.servers import Server
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.retries import Retries
from tauscope_client.references.sglang import SglangSource
from tauscope_client.references.source import ReferenceSource, TokenBridge, Turn

__all__ = ["Sources", "turn_for"]


def turn_for(bridge: LocalBridge, name: str, *, max_new_tokens: int = 96, tail_tokens: int = 0) -> Turn:
    """One prompt of `engines.prompts`, rendered."""
    return Turn(
        id=name,
        prompt_ids=bridge.prompt_ids(name),
        messages=messages(name),
        max_new_tokens=max_new_tokens,
        tail_tokens=tail_tokens,
        stop_token_ids=STOP_IDS,
    )


class Sources:
    """Opens the client's sources as `--reference` does, and closes their connections at the end."""

    def __init__(self, bridge: TokenBridge) -> None:
        self._bridge = bridge
        self._opened: list[EngineHttp] = []

    def __call__(
        self, server: Server, *, url: str | None = None, key: str | None = None, retries: Retries | None = None
    ) -> ReferenceSource:
        """The source for a server, at another address when a proxy stands before it."""
        http = EngineHttp(url or server.url, key=key, retries=retries)
        self._opened.append(http)
        return SglangSource(http, self._bridge) if server.engine.name == "sglang" else OpenAISource(http, self._bridge)

    def close(self) -> None:
        """Close every connection."""
        for http in self._opened:
            http.close()
