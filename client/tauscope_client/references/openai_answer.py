"""One answer of an OpenAI-compatible server, completions and chat alike, in the words of several servers."""

from dataclasses import dataclass
from typing import Any

from tauscope_client.references.record import FinishReason
from tauscope_wire.errors import ErrorCode, InternalError, MismatchError

__all__ = ["OpenAIAnswer", "read_answer"]


@dataclass(frozen=True)
class OpenAIAnswer:
    """What the client uses of an answer.

    Attributes:
        text: the completion.
        finish_reason: `stop`, `length`, or `other`.
        stop_id: the stop id that matched, when the server names it (vLLM `stop_reason`, SGLang `matched_stop`).
        ids: the sampled ids, None when the server gives text only.
        prompt_ids: the ids the server saw, None when it does not say.
        num_prompt_tokens: how many prompt tokens it counted, None when it does not say.
        num_completion_tokens: how many tokens it sampled, None when it does not say.
        num_cached_tokens: how many prompt tokens it found in its prefix cache, None when it does not say.
    """

    text: str
    finish_reason: FinishReason
    stop_id: int | None
    ids: list[int] | None
    prompt_ids: list[int] | None
    num_prompt_tokens: int | None
    num_completion_tokens: int | None
    num_cached_tokens: int | None


def read_answer(answer: dict[str, Any], url: str) -> OpenAIAnswer:
    """Read the body of `/v1/completions` or `/v1/chat/completions`.

    Raises:
        InternalError: not one choice.
        MismatchError: the server took the reasoning out of the text.
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise InternalError(f"{url}: expected exactly one choice in the answer", ErrorCode.UNEXPECTED_ANSWER)
    choice = choices[0]
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else choice.get("text")
    # vLLM says token_ids on both routes; SGLang says response_token_ids on chat.
    ids = _ids(choice.get("token_ids", choice.get("response_token_ids")))
    if ids is None and isinstance(message, dict) and (message.get("reasoning_content") or message.get("reasoning")):
        raise MismatchError(
            f"{url} splits reasoning from the answer, so its text cannot be put together again: start it without a "
            "reasoning parser, or switch thinking off with --template-kwargs",
            ErrorCode.UNEXPECTED_ANSWER,
        )
    usage = answer.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    reason = choice.get("finish_reason")
    return OpenAIAnswer(
        text=content if isinstance(content, str) else "",
        finish_reason="stop" if reason == "stop" else "length" if reason == "length" else "other",
        stop_id=matched if type(matched) is int else None,
        ids=ids,
        prompt_ids=_ids(choice.get("prompt_token_ids", answer.get("prompt_token_ids"))),
        num_prompt_tokens=_count(counts.get("prompt_tokens")),
        num_completion_tokens=_count(counts.get("completion_tokens")),
        num_cached_tokens=_count((counts.get("prompt_tokens_details") or {}).get("cached_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _ids(value: Any) -> list[int] | None:
    return list(value) if isinstance(value, list) and all(type(item) is int for item in value) else None
