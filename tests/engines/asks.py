"""Small things that the integration tests do with a server through the client."""

from collections.abc import Mapping
from typing import Any

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


def turn_for(
    bridge: LocalBridge,
    name: str,
    *,
    max_new_tokens: int = 96,
    tail_tokens: int = 0,
    repeat: int = 1,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Turn:
    """One prompt of `engines.prompts`, rendered."""
    kwargs = dict(template_kwargs or {})
    return Turn(
        id=name,
        prompt_ids=bridge.prompt_ids(name, repeat=repeat, **kwargs),
        messages=messages(name, repeat=repeat),
        template_kwargs=kwargs,
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
        self,
        server: Server,
        *,
        url: str | None = None,
        key: str | None = None,
        model: str | None = None,
        retries: Retries | None = None,
        read_timeout_s: float | None = None,
        is_openai: bool = False,
    ) -> ReferenceSource:
        """The source for a server: `sglang=` for SGLang unless `is_openai`, else `openai=`.

        Args:
            server: the engine.
            url: another address, when a proxy stands before it.
            key: API key.
            model: name that it must serve.
            retries: how to try again.
            read_timeout_s: how long one answer may take; None: as long as the client waits otherwise.
            is_openai: ask SGLang by its OpenAI routes.
        """
        waits = {} if read_timeout_s is None else {"read_timeout_s": read_timeout_s}
        http = EngineHttp(url or server.url, key=key, retries=retries, **waits)
        self._opened.append(http)
        kind = SglangSource if server.engine.name == "sglang" and not is_openai else OpenAISource
        return kind(http, self._bridge, model=model)

    def close(self) -> None:
        """Close every connection."""
        for http in self._opened:
            http.close()
