"""How one completion is asked for in the OpenAI protocol: the dialects, best first, and the body of each.

Every sampling field that a server knows is sent, because what is left out comes from somewhere else: the model's
`generation_config.json` (vLLM, SGLang), or the server's own habits (llama-cpp-python: a repetition penalty of 1.1).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tauscope_client.references.source import Turn

__all__ = ["Dialect", "body_of", "dialects", "route_of"]

Dialect = Literal["ids+options", "ids", "chat+options", "chat+template", "chat"]

# Sampling fields of the OpenAI protocol, which every server takes.
_PLAIN: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "n": 1,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "stream": False,
}
# Fields of vLLM and SGLang: without them the model's generation_config.json fills in (top_k 20, a repetition penalty).
_OPTIONS: dict[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "skip_special_tokens": False,
    "return_token_ids": True,
}
# llama.cpp's words for the same; it refuses a top_k below 0, and would penalise repetitions if it were not told.
_LLAMA_KINDS = ("llama.cpp", "llama-cpp-python")
_LLAMA_OPTIONS: dict[str, Any] = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}


def dialects(kind: str, turn: Turn) -> Iterator[Dialect]:
    """What to try, best first.

    Args:
        kind: of server, as the facts say it.
        turn: says whether template options have to go with the request.
    """
    # llama-cpp-python takes no ids, and answers 500 where it means "a wrong request", which is worth trying again.
    if kind != "llama-cpp-python":
        yield from ("ids+options", "ids")
    yield "chat+options"
    if turn.template_kwargs and turn.messages is not None:
        yield "chat+template"
    yield "chat"


def route_of(dialect: Dialect, turn: Turn) -> str:
    """Where to POST."""
    is_chat = dialect.startswith("chat") and turn.messages is not None
    return "/v1/chat/completions" if is_chat else "/v1/completions"


def body_of(
    dialect: Dialect,
    turn: Turn,
    *,
    kind: str,
    model: str,
    max_tokens: int,
    stop_ids: Sequence[int],
    ignore_eos: bool = False,
) -> dict[str, Any]:
    """The request.

    Args:
        dialect: one of `dialects`.
        turn: prompt and sampling.
        kind: of server, as the facts say it.
        model: the name that the server serves it under.
        max_tokens: length limit.
        stop_ids: ids that end the text, for servers that take them.
        ignore_eos: go on past the end of the text, for servers that can.
    """
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, **_PLAIN}
    if dialect.startswith("ids"):
        body["prompt"] = list(turn.prompt_ids)
    elif turn.messages is None:
        body["prompt"] = turn.text
    else:
        body["messages"] = [message.model_dump() for message in turn.messages]
    body |= {"temperature": turn.sampling.temperature, "top_p": turn.sampling.top_p}
    if not turn.sampling.is_greedy:
        body["seed"] = turn.sampling.seed
    if dialect.endswith("options") and kind in _LLAMA_KINDS:
        body |= _LLAMA_OPTIONS | {"top_k": turn.sampling.top_k}
    elif dialect.endswith("options"):
        body |= _OPTIONS | {"ignore_eos": ignore_eos, "top_k": turn.sampling.top_k or -1}
        if stop_ids:
            body["stop_token_ids"] = list(stop_ids)
    if turn.messages is not None and dialect in ("chat+options", "chat+template"):
        body["chat_template_kwargs"] = turn.template_kwargs
    return body
