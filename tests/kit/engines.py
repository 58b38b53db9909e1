"""Small HTTP apps that speak the dialects of SGLang and of OpenAI-compatible servers, backed by a fixed table.

They stand in for real engines where a test is about the client's side of the talk; real engines have a suite of their
own. Run them with `kit.serve.running`. The "model" is a table from the last two tokens to the next one, its tokens are
ASCII codes, so every expected answer can be worked out by hand.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

VOCAB_SIZE = 128
STOP_ID = 3
LETTERS = [ord(char) for char in "abcdefghijklmnop\n "]


class TableModel:
    """A greedy language model that anybody can follow: the next token depends on the last two.

    Attributes:
        table: int [VOCAB, VOCAB], next token by (token before last, last).
    """

    def __init__(self, seed: int = 0, *, stop_share: float = 0.02) -> None:
        rng = np.random.default_rng(seed)
        self.table = rng.choice(LETTERS, size=(VOCAB_SIZE, VOCAB_SIZE))
        self.table[rng.random((VOCAB_SIZE, VOCAB_SIZE)) < stop_share] = STOP_ID

    def next_token(self, ids: Sequence[int]) -> int:
        before = ids[-2] if len(ids) > 1 else 0
        return int(self.table[before, ids[-1]])

    def generate(self, ids: Sequence[int], max_new_tokens: int, *, stop_ids: Sequence[int] = (STOP_ID,)) -> list[int]:
        text = list(ids)
        while len(text) - len(ids) < max_new_tokens:
            text.append(self.next_token(text))
            if text[-1] in stop_ids:
                break
        return text[len(ids) :]


def encode(text: str) -> list[int]:
    """ASCII codes; anything else becomes a question mark, as lossy tokenizers do."""
    return [ord(char) if ord(char) < VOCAB_SIZE else ord("?") for char in text]


def decode(ids: Sequence[int], *, skip_special: bool = False) -> str:
    return "".join(chr(i) for i in ids if not (skip_special and i < 9))


def render(messages: Sequence[dict[str, str]], **kwargs: Any) -> str:
    """The chat template: start of text, role, content, end of text; `thinking` adds a line."""
    turns = "".join(f"\x02{m['role']}\n{m['content']}\x03\n" for m in messages)
    return f"{turns}\x02assistant\n" + ("(thinking)\n" if kwargs.get("enable_thinking") else "")


@dataclass
class Talk:
    """What an engine was asked, and what it shall do wrong next.

    Attributes:
        bodies: every request body, in order.
        flushed: how often the prefix cache was emptied.
        faults: the next answers: a status, (status, body, headers), or "cut" for a body that ends half-way.
    """

    bodies: list[dict[str, Any]] = field(default_factory=list)
    faults: deque[Any] = field(default_factory=deque)
    flushed: int = 0

    def fault(self) -> Response | None:
        if not self.faults:
            return None
        fault = self.faults.popleft()
        if fault == "cut":
            return StreamingResponse(_half(), media_type="application/json", headers={"Content-Length": "1000"})
        status, body, headers = fault if isinstance(fault, tuple) else (fault, {"error": {"message": "as planned"}}, {})
        return JSONResponse(body, status_code=status, headers=headers)


async def _half() -> AsyncIterator[bytes]:
    yield b'{"text": "cut'
    raise ConnectionResetError("planned: the body ends here")


def sglang_app(
    model: TableModel,
    talk: Talk,
    *,
    speculative: bool = False,
    admin_only: bool = False,
    key: str | None = None,
    context_length: int = 512,
    returns_ids: bool = True,
    trims_stop: bool = False,
) -> FastAPI:
    """SGLang's native routes as of 0.5: /get_model_info, /get_server_info, /generate."""
    app = FastAPI()

    @app.get("/get_model_info")
    def model_info() -> dict[str, Any]:
        return {
            "model_path": "table-model",
            "tokenizer_path": "table-model",
            "is_generation": True,
            "weight_version": "7",
        }

    @app.get("/get_server_info")
    def server_info() -> Response:
        if admin_only:
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        algorithm = "DFLASH" if speculative else None
        return JSONResponse(
            {"version": "0.5.23", "speculative_algorithm": algorithm, "enable_deterministic_inference": True}
        )

    @app.post("/flush_cache")
    def flush_cache() -> Response:
        talk.flushed += 1
        return Response("Cache flushed.", media_type="text/plain")

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        body = await request.json()
        talk.bodies.append(body)
        if (fault := talk.fault()) is not None:
            return fault
        ids, sampling = body["input_ids"], body["sampling_params"]
        if len(ids) >= context_length:
            message = (
                f"The input ({len(ids)} tokens) is longer than the model's context length ({context_length} tokens)."
            )
            return JSONResponse({"error": {"message": message}}, status_code=400)
        stop_ids = () if sampling.get("ignore_eos") else {STOP_ID, *sampling.get("stop_token_ids", [])}
        output = model.generate(ids, sampling["max_new_tokens"], stop_ids=tuple(stop_ids))
        stopped = bool(output) and output[-1] in stop_ids
        reason = {"type": "stop", "matched": output[-1]} if stopped else {"type": "length", "length": len(output)}
        meta: dict[str, Any] = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(output),
            "cached_tokens": 0,
            "finish_reason": reason,
        }
        if speculative:
            steps = max(1, len(output) // 2)
            meta |= {
                "spec_verify_ct": steps,
                "spec_accept_length": len(output) / steps,
                "spec_accept_histogram": [0, steps],
            }
        if trims_stop and stopped:
            output = output[:-1]
        answer: dict[str, Any] = {"text": decode(output), "meta_info": meta}
        return JSONResponse(answer | ({"output_ids": output} if returns_ids else {}))

    return app


def openai_app(
    model: TableModel,
    talk: Talk,
    *,
    owned_by: str = "vllm",
    takes_ids: bool = True,
    takes_options: bool = True,
    names: Sequence[str] = ("table-model",),
    suffix: str = "",
) -> FastAPI:
    """An OpenAI-compatible server: with ids and options it is vLLM, without either it is `transformers serve`.

    Args:
        model: what answers.
        talk: what was asked.
        owned_by: as `/v1/models` says it.
        takes_ids: accepts a list of ids as `prompt` and gives ids back.
        takes_options: accepts fields that are not OpenAI's; otherwise 422.
        names: models served.
        suffix: added to the text of every answer, for text that does not round-trip.
    """
    app = FastAPI()
    known = {"model", "prompt", "messages", "max_tokens", "temperature", "top_p", "n", "stream"}
    known |= {"frequency_penalty", "presence_penalty"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owned_by} for name in names]}

    if owned_by == "vllm":

        @app.get("/version")
        def version() -> dict[str, str]:
            return {"version": "0.32.0"}

    def answer(body: dict[str, Any], ids: list[int], *, is_chat: bool) -> Response:
        unknown = sorted(set(body) - known)
        if unknown and not takes_options:
            return JSONResponse({"error": {"message": f"Unexpected fields: {unknown}"}}, status_code=422)
        stop_ids = () if body.get("ignore_eos") else {STOP_ID, *body.get("stop_token_ids", [])}
        output = model.generate(ids, body["max_tokens"], stop_ids=tuple(stop_ids))
        stopped = bool(output) and output[-1] in stop_ids
        text = decode(output[:-1] if stopped else output) + suffix
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if stopped else "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        if body.get("return_token_ids"):
            choice |= {"token_ids": output, "prompt_token_ids": ids}
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(output), "total_tokens": len(ids) + len(output)}
        return JSONResponse({"id": "x", "model": body["model"], "choices": [choice], "usage": usage})

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        talk.bodies.append(body)
        if (fault := talk.fault()) is not None:
            return fault
        prompt = body["prompt"]
        if isinstance(prompt, list) and not takes_ids:
            return JSONResponse({"error": {"message": "prompt must be a string"}}, status_code=400)
        return answer(body, prompt if isinstance(prompt, list) else encode(prompt), is_chat=False)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        talk.bodies.append(body)
        if (fault := talk.fault()) is not None:
            return fault
        return answer(body, encode(render(body["messages"], **body.get("chat_template_kwargs", {}))), is_chat=True)

    return app
