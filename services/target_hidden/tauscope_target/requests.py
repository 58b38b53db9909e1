"""From a wire request to a job: every bound is checked here, before anything is queued. No torch, no HTTP."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_target.jobs import GenerateJob, HiddenJob, LogitsSpec, TargetFacts, Tokens
from tauscope_wire.dtypes import itemsize
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError, TooLargeError
from tauscope_wire.layers import canonical_layers
from tauscope_wire.messages import GenerateRequest, HiddenRequest, Limits, Prompt


def prompt_ids(prompt: Prompt, *, tokens: Tokens | None, facts: TargetFacts, limits: Limits) -> npt.NDArray[np.int32]:
    """Token ids of a prompt, checked against vocabulary and length.

    Args:
        prompt: ids, text or messages.
        tokens: the tokenizer, or None when the checkpoint has none.
        facts: the model.
        limits: bounds of the service.

    Raises:
        RequestError: empty, an id outside the vocabulary, no tokenizer, or a template that refuses.
        TooLargeError: longer than the service or the model allows (`prompt_too_long`).
    """
    ids = _ids(prompt, tokens)
    if not ids:
        raise RequestError("the prompt has no tokens; give at least one", ErrorCode.EMPTY_PROMPT)
    bounds = {
        "this service accepts": limits.max_tokens,
        "the model was made for": facts.max_positions or limits.max_tokens,
        "the memory of the device holds": facts.longest_tokens or limits.max_tokens,
    }
    whose, bound = min(bounds.items(), key=lambda item: item[1])
    if len(ids) > bound:
        raise TooLargeError(
            f"the prompt has {len(ids)} tokens: {whose} at most {bound}",
            ErrorCode.PROMPT_TOO_LONG,
            details={"limit": "max_tokens", "value": len(ids), "bound": bound},
        )
    vocab = facts.model.vocab_size
    largest = max(ids)
    if largest >= vocab:
        index = next(i for i, token in enumerate(ids) if token >= vocab)
        raise RequestError(
            f"token_ids[{index}]={ids[index]}: the vocabulary has {vocab} ids (0..{vocab - 1})",
            ErrorCode.TOKEN_OUT_OF_RANGE,
            details={"index": index, "value": ids[index], "bound": vocab - 1},
        )
    return np.asarray(ids, np.int32)


def _ids(prompt: Prompt, tokens: Tokens | None) -> list[int]:
    if prompt.token_ids is not None:
        return prompt.token_ids
    if tokens is None:
        raise RequestError(
            "the checkpoint has no tokenizer: send token_ids in place of text or messages", ErrorCode.NOT_SUPPORTED
        )
    if prompt.text is not None:
        return tokens.encode(prompt.text)
    assert prompt.messages is not None
    return tokens.encode_messages(
        prompt.messages, template_kwargs=prompt.template_kwargs, add_generation_prompt=prompt.add_generation_prompt
    )


def hidden_job(
    request: HiddenRequest,
    ids: npt.NDArray[np.int32],
    *,
    facts: TargetFacts,
    limits: Limits,
    is_cancelled: Callable[[], bool],
) -> HiddenJob:
    """The job of a hidden-states request.

    Raises:
        RequestError: layers, positions or dtype that do not exist here, or nothing asked for.
        MismatchError: the service's mode cannot give it (`mode_cannot`).
        TooLargeError: more layers, ids per position, or bytes than allowed.
    """
    _bounded("layers", len(request.layers), limits.max_layers, "max_layers")
    layers = canonical_layers(request.layers, request.convention, num_layers=facts.model.num_layers)
    for index, layer in enumerate(layers):
        if layer > facts.deepest_layer:
            raise MismatchError(
                f"layers[{index}]={request.layers[index]}: this service loaded layers up to {facts.deepest_layer} "
                "(--deepest-layer)",
                ErrorCode.MODE_CANNOT,
                details={"index": index, "value": layer, "high": facts.deepest_layer},
            )
    if not layers and not request.final_norm and request.logits is None:
        raise RequestError("nothing is asked for: give layers, final_norm or logits")
    if (request.final_norm or request.logits is not None) and not facts.has_head:
        raise MismatchError(
            "final_norm and logits need the last layer and the head, which this service did not load; see mode_cannot "
            "in /info",
            ErrorCode.MODE_CANNOT,
        )
    if request.dtype not in facts.dtypes:
        raise RequestError(
            f"dtype {request.dtype!r}: this service computes in {facts.numerics.compute_dtype} and gives "
            f"{', '.join(facts.dtypes)}",
            ErrorCode.NOT_SUPPORTED,
        )
    start, stop = _positions(request.positions, len(ids))
    job = HiddenJob(
        token_ids=ids,
        layers=tuple(layers),
        final_norm=request.final_norm,
        start=start,
        stop=stop,
        dtype=request.dtype,
        logits=None if request.logits is None else LogitsSpec(request.logits.top_k, request.logits.next_token),
        is_cancelled=is_cancelled,
    )
    if job.logits is not None:
        _bounded("logits.top_k", job.logits.top_k, min(limits.max_top_k, facts.model.vocab_size), "max_top_k")
    _bounded("the answer", answer_bytes(job, facts), limits.max_answer_bytes, "max_answer_bytes", unit=" bytes")
    return job


def answer_bytes(job: HiddenJob, facts: TargetFacts) -> int:
    """Bytes of an answer's arrays."""
    states = len(job.planes) * job.num_positions * facts.model.hidden_size * itemsize(job.dtype)
    summary = job.num_positions * (4 + 8 * job.logits.top_k + 4) if job.logits is not None else 0
    return states + summary


def generate_job(
    request: GenerateRequest,
    ids: npt.NDArray[np.int32],
    *,
    facts: TargetFacts,
    limits: Limits,
    is_cancelled: Callable[[], bool],
) -> GenerateJob:
    """The job of a generation.

    Raises:
        MismatchError: the service's mode cannot generate (`mode_cannot`).
        TooLargeError: more new tokens than allowed, or prompt and answer together longer than the model.
    """
    if not facts.can_generate:
        raise MismatchError("this service does not generate; see mode_cannot in /info", ErrorCode.MODE_CANNOT)
    _bounded("max_new_tokens", request.max_new_tokens, limits.max_new_tokens, "max_new_tokens")
    total = len(ids) + request.max_new_tokens + request.tail_tokens
    if facts.max_positions:
        _bounded("prompt, new tokens and tail", total, facts.max_positions, "max_positions")
    stops = request.stop_token_ids if request.stop_token_ids is not None else facts.model.stop_token_ids
    return GenerateJob(
        token_ids=ids,
        max_new_tokens=request.max_new_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        stop_token_ids=frozenset(stops),
        tail_tokens=request.tail_tokens,
        is_cancelled=is_cancelled,
    )


def deadline_of(asked: float | None, limits: Limits) -> float:
    """Seconds a request may take.

    Raises:
        TooLargeError: more than the service allows.
    """
    if asked is None:
        return limits.default_deadline_s
    _bounded("deadline_s", asked, limits.max_deadline_s, "max_deadline_s")
    return asked


def _positions(asked: tuple[int, int] | str | None, length: int) -> tuple[int, int]:
    if asked is None:
        return 0, length
    if isinstance(asked, str):
        return length - 1, length
    start, stop = asked
    if not 0 <= start < stop <= length:
        raise RequestError(
            f"positions [{start}, {stop}): the sequence has {length} tokens; give 0 <= start < stop <= {length}",
            ErrorCode.POSITION_OUT_OF_RANGE,
            details={"start": start, "stop": stop, "bound": length},
        )
    return start, stop


def _bounded(what: str, value: Any, bound: Any, limit: str, *, unit: str = "") -> None:
    if value > bound:
        code = ErrorCode.ANSWER_TOO_LARGE if limit == "max_answer_bytes" else ErrorCode.LIMIT_EXCEEDED
        raise TooLargeError(
            f"{what}: {value}{unit}, at most {bound} here",
            code,
            details={"limit": limit, "value": value, "bound": bound},
        )
