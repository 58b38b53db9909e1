"""`/tokenize`, `/detokenize`, `/generate`: what a client without tokenizer and without a server needs."""

import asyncio
import threading
import time
from dataclasses import replace

import numpy as np
from fastapi import APIRouter, Request

from tauscope_serving.access import Extractor, Reader
from tauscope_serving.bodies import described_body, read_body
from tauscope_serving.disconnect import until_disconnect
from tauscope_target.jobs import GenerateJob, GenerateResult, Tokens
from tauscope_target.parts import TargetParts
from tauscope_target.requests import deadline_of, generate_job, prompt_ids
from tauscope_wire.errors import DeadlineError, ErrorCode, InternalError, RequestError, TooLargeError
from tauscope_wire.messages import (
    DetokenizeAnswer,
    DetokenizeRequest,
    GenerateAnswer,
    GenerateRequest,
    TokenizeAnswer,
    TokenizeRequest,
)


class TextRoutes:
    """Handlers of the text endpoints."""

    def __init__(self, parts: TargetParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(tags=["text"])
        router.add_api_route(
            "/tokenize",
            self.tokenize,
            methods=["POST"],
            summary="Text or messages to ids",
            openapi_extra=described_body(TokenizeRequest),
        )
        router.add_api_route(
            "/detokenize",
            self.detokenize,
            methods=["POST"],
            summary="Ids to text",
            openapi_extra=described_body(DetokenizeRequest),
        )
        router.add_api_route(
            "/generate",
            self.generate,
            methods=["POST"],
            summary="Continue a prompt with the served model",
            openapi_extra=described_body(GenerateRequest),
        )
        return router

    async def tokenize(self, request: Request, caller: Reader) -> TokenizeAnswer:
        """Ids of text or messages; ids are checked against the vocabulary."""
        parts, limits = self._parts, self._parts.settings.limits
        body = await read_body(request, TokenizeRequest, max_bytes=limits.max_body_bytes)
        facts = parts.engine.facts
        ids = await asyncio.to_thread(prompt_ids, body, tokens=parts.tokens, facts=facts, limits=limits)
        return TokenizeAnswer(token_ids=ids.tolist(), num_tokens=len(ids))

    async def detokenize(self, request: Request, caller: Reader) -> DetokenizeAnswer:
        """Text of ids, and the text of each id by itself."""
        parts, limits = self._parts, self._parts.settings.limits
        body = await read_body(request, DetokenizeRequest, max_bytes=limits.max_body_bytes)
        if len(body.token_ids) > limits.max_tokens:
            raise TooLargeError(
                f"token_ids has {len(body.token_ids)} ids, at most {limits.max_tokens} here",
                details={"limit": "max_tokens", "value": len(body.token_ids), "bound": limits.max_tokens},
            )
        vocab = parts.engine.facts.model.vocab_size
        if body.token_ids and max(body.token_ids) >= vocab:
            raise RequestError(
                f"token id {max(body.token_ids)}: the vocabulary has {vocab} ids (0..{vocab - 1})",
                ErrorCode.TOKEN_OUT_OF_RANGE,
            )
        tokens = self._tokens()
        text = await asyncio.to_thread(tokens.decode, body.token_ids, skip_special_tokens=body.skip_special_tokens)
        pieces = await asyncio.to_thread(tokens.pieces, body.token_ids)
        return DetokenizeAnswer(text=text, pieces=pieces)

    async def generate(self, request: Request, caller: Extractor) -> GenerateAnswer:
        """Continue a prompt, greedy or sampled with a seed."""
        parts, limits = self._parts, self._parts.settings.limits
        body = await read_body(request, GenerateRequest, max_bytes=limits.max_body_bytes)
        facts = parts.engine.facts
        ids = await asyncio.to_thread(prompt_ids, body, tokens=parts.tokens, facts=facts, limits=limits)
        gone = threading.Event()
        job = generate_job(body, ids, facts=facts, limits=limits, is_cancelled=gone.is_set)
        await parts.charge(request, caller, num_tokens=len(ids) + body.max_new_tokens + body.tail_tokens)
        deadline_s = deadline_of(body.deadline_s, limits)
        begun = time.perf_counter()
        try:
            result = await until_disconnect(request, self._in_slices(job, caller.name, deadline_s))
        finally:
            gone.set()  # a slice that still runs for us stops at its next token
        text = ""
        if parts.tokens is not None:
            text = await asyncio.to_thread(parts.tokens.decode, result.token_ids, skip_special_tokens=False)
        busy_ms = sum(result.timing_ms.values())
        queue_ms = max(0.0, (time.perf_counter() - begun) * 1e3 - busy_ms)
        timing_ms = {"queue": queue_ms, **result.timing_ms}
        parts.metrics.observe_stages(timing_ms)
        return GenerateAnswer(
            prompt_token_ids=np.asarray(ids).tolist(),
            token_ids=result.token_ids,
            text=text,
            tail_token_ids=result.tail_token_ids,
            finish_reason=result.finish_reason,
            numerics=facts.numerics,
            timing_ms=timing_ms,
        )

    async def _in_slices(self, job: GenerateJob, caller: str, deadline_s: float) -> GenerateResult:
        """Run a generation slice by slice, so that other callers get their turns between."""
        ends = time.monotonic() + deadline_s
        cost = len(job.token_ids)
        while True:
            left = ends - time.monotonic()
            if left <= 0:
                raise DeadlineError(
                    f"not done within {deadline_s:g} s; ask for fewer tokens, or give a longer deadline_s"
                )
            result = await self._parts.loop.run(job, cost=cost, caller=caller, deadline_s=left)
            if not isinstance(result, GenerateResult):
                raise InternalError(f"a generation gave {type(result).__name__}")
            if result.session is None:
                return result
            job = replace(job, session=result.session)
            cost = 1

    def _tokens(self) -> Tokens:
        if self._parts.tokens is None:
            raise RequestError("the checkpoint has no tokenizer", ErrorCode.NOT_SUPPORTED)
        return self._parts.tokens
