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

__all__ = ["source_for", "turn_for"]


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


def source_for(
    server: Server,
    bridge: TokenBridge,
    *,
    url: str | None = None,
    key: str | None = None,
    retries: Retries | None = None,
) -> ReferenceSource:
    """The client's source for a server, as `--reference` opens it."""
    http = EngineHttp(url or server.url, key=key, retries=retries)
    return SglangSource(http, bridge) if server.engine.name == "sglang" else OpenAISource(http, bridge)
