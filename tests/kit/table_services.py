"""Both services without weights: the table model of `kit.engines` behind the endpoints that the client talks to.

Tensor bodies are packed with the msgpack library from the fields in SPEC.md, not with the project's writer, so that the
client is tested against the contract. Real services have tests of their own, end to end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import xxhash
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from kit.engines import STOP_ID, VOCAB_SIZE, TableModel, decode, encode, render

NUM_LAYERS, HIDDEN = 64, 8
MODEL = {
    "id": "table-model",
    "revision": "sha256:0123",
    "config_sha256": "abcd",
    "num_layers": NUM_LAYERS,
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB_SIZE,
    "stop_token_ids": [STOP_ID],
}
NUMERICS = {
    "revision": "sha256:0123",
    "compute_dtype": "float32",
    "weights_dtype": "float32",
    "device": "cpu",
    "torch": "0",
    "transformers": "0",
    "attention": "table",
    "weights_mode": "resident",
}
LIMITS = {
    "max_body_bytes": 1 << 24,
    "max_tokens": 400,
    "max_queued": 64,
    "max_anchors": 100,
    "max_top_k": 64,
    "default_deadline_s": 60.0,
    "max_deadline_s": 60.0,
}
HIDDEN_FIELDS = (
    *("schema", "request_id", "model", "numerics", "requested", "planes", "dtype", "token_ids", "positions", "shape"),
    *("handle", "chunks", "digest", "logits", "timing_ms", "end"),
)
SUMMARY_FIELDS = ("name", "family", "block_size", "layout", "drafts", "taps", "sha256")


@dataclass
class Ledger:
    """What the services did, and what shall go wrong.

    Attributes:
        calls: (endpoint, detail) of every request that costs work.
        handles: states that are kept; a test may take some away.
        gone_after: how many of the next handles vanish as soon as they are made.
        fail: prompts (by number of prompt tokens) that get an error from the drafter.
    """

    calls: list[tuple[str, Any]] = field(default_factory=list)
    handles: set[str] = field(default_factory=set)
    gone_after: int = 0
    fail: set[int] = field(default_factory=set)
    lock: Any = field(default_factory=Lock)

    def reset(self) -> None:
        """As new: the services keep running from one test to the next."""
        self.calls.clear()
        self.handles.clear()
        self.fail = set()
        self.gone_after = 0

    def count(self, endpoint: str) -> int:
        return sum(name == endpoint for name, _ in self.calls)


def _error(status: int, code: str, message: str) -> Response:
    body = {"error": {"code": code, "message": message, "request_id": "r", "details": {}}}
    return JSONResponse(body, status_code=status)


def _ids(body: dict[str, Any]) -> list[int]:
    if body.get("token_ids") is not None:
        return list(body["token_ids"])
    if body.get("text") is not None:
        return encode(body["text"])
    return encode(render(body["messages"], **body.get("template_kwargs", {})))


def target_app(
    model: TableModel,
    ledger: Ledger,
    *,
    version: str = "0.1.0",
    mode_cannot: Sequence[str] = (),
    own: TableModel | None = None,
    reference_kernels: bool = False,
) -> FastAPI:
    """The target service; `own` lets its argmax differ from what `model` generates."""
    app = FastAPI()
    judge = own if own is not None else model
    numerics = NUMERICS | {"reference_kernels": reference_kernels}

    @app.get("/info")
    def info() -> dict[str, Any]:
        return {
            "service": "target",
            "version": version,
            "model": MODEL,
            "architecture": "TableModel",
            "layer_types": ["table"] * NUM_LAYERS,
            "numerics": numerics,
            "mode": "resident",
            "mode_cannot": list(mode_cannot),
            "limits": LIMITS,
            "self_tests": [{"name": "argmax", "status": "passed", "detail": "1.0"}],
            "deepest_layer": NUM_LAYERS - 1,
            "dtypes": ["bfloat16", "float32"],
            "chat_template": True,
        }

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        ids = _ids(await request.json())
        return {"token_ids": ids, "num_tokens": len(ids)}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        body = await request.json()
        skip = body["skip_special_tokens"]
        return {
            "text": decode(body["token_ids"], skip_special=skip),
            "pieces": [decode([i]) for i in body["token_ids"]],
        }

    @app.post("/generate")
    async def generate(request: Request) -> dict[str, Any]:
        body = await request.json()
        ids = _ids(body)
        with ledger.lock:
            ledger.calls.append(("generate", tuple(ids)))
        output = model.generate(ids, body["max_new_tokens"], stop_ids=body["stop_token_ids"])
        tail = model.generate([*ids, *output], body["tail_tokens"], stop_ids=()) if body["tail_tokens"] else []
        reason = "stop" if output[-1] in body["stop_token_ids"] else "length"
        answer = {"prompt_token_ids": ids, "token_ids": output, "text": decode(output), "tail_token_ids": tail}
        return answer | {"finish_reason": reason, "numerics": numerics}

    @app.post("/hidden_states")
    async def hidden_states(request: Request) -> Response:
        body = await request.json()
        ids = _ids(body)
        for index, layer in enumerate(body["layers"]):
            if not -1 <= layer < NUM_LAYERS:
                message = f"layers[{index}]={layer}: the model has {NUM_LAYERS} decoder layers (0..{NUM_LAYERS - 1})"
                return _error(422, "layer_out_of_range", message)
        if len(ids) > LIMITS["max_tokens"]:
            return _error(413, "prompt_too_long", f"{len(ids)} tokens: at most {LIMITS['max_tokens']}")
        with ledger.lock:
            ledger.calls.append(("hidden", tuple(ids)))
            handle = f"h{len(ledger.calls)}"
            if ledger.gone_after > 0:
                ledger.gone_after -= 1
            else:
                ledger.handles.add(handle)
        head: dict[str, Any] = {
            "schema": "tauscope.hidden/1",
            "request_id": "r",
            "model": MODEL,
            "numerics": numerics,
            "requested": {"convention": body["convention"], "layers": body["layers"]},
            "planes": body["layers"],
            "dtype": body["dtype"],
            "positions": [0, len(ids)],
            "shape": [len(body["layers"]), len(ids), HIDDEN],
            "handle": handle,
            "timing_ms": {"forward": 1.0},
        }
        logits = _logits(judge, ids, body)
        if body["return"] == "handle" and logits is None:
            return JSONResponse(head | {"num_tokens": len(ids), "digest": "d" * 32})
        if body["return"] == "handle":
            fields = head | {"token_ids": np.asarray(ids, "<i4").tobytes(), "chunks": [], "digest": "d" * 32}
            return _packed(fields | {"logits": logits, "end": True})
        dtype = ml_dtypes.bfloat16 if body["dtype"] == "bfloat16" else "<f4"
        states = np.arange(1, 1 + np.prod(head["shape"])).reshape(head["shape"]).astype(dtype)
        chunk = {
            "start": 0,
            "stop": len(ids),
            "data": [plane.tobytes() for plane in states],
            "xxh3_128": _hash(states.tobytes()),
        }
        fields = head | {"handle": None, "token_ids": np.asarray(ids, "<i4").tobytes(), "chunks": [chunk]}
        fields |= {"digest": _hash(states.tobytes()), "logits": None, "end": True}
        return _packed(fields)

    return app


def _packed(fields: dict[str, Any]) -> Response:
    return Response(msgpack.packb({name: fields[name] for name in HIDDEN_FIELDS}), media_type="application/msgpack")


def _hash(*buffers: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(b"".join(buffers))


def _logits(judge: TableModel, ids: list[int], body: dict[str, Any]) -> dict[str, Any] | None:
    if body.get("logits") is None:
        return None
    choices = [judge.next_token(ids[: i + 1]) for i in range(len(ids))]
    second = [(choice + 1) % VOCAB_SIZE for choice in choices]
    following = [-0.1 if choice == ids[i + 1] else -4.0 for i, choice in enumerate(choices[:-1])]
    top = [[a, b] for a, b in zip(choices, second, strict=True)]
    bins = {
        "argmax_ids": np.asarray(choices, "<i4").tobytes(),
        "top_ids": np.asarray(top, "<i4").tobytes(),
        "top_logprobs": np.asarray([[-0.1, -3.0]] * len(ids), "<f4").tobytes(),
        "next_logprobs": np.asarray(following, "<f4").tobytes(),
    }
    return {"top_k": 2} | bins | {"xxh3_128": _hash(*bins.values())}


def right_draft(salt: int, anchor: int, column: int) -> bool:
    """Whether the table drafter is right at this place."""
    return (anchor * 7 + column * 3 + salt) % 5 > 0


def drafter_app(
    model: TableModel,
    ledger: Ledger,
    *,
    salts: dict[str, int],
    drafts: int = 4,
    hidden_size: int = HIDDEN,
    target_url: str = "http://target",
    other_target: bool = False,
    training: dict[str, Any] | None = None,
) -> FastAPI:
    """The drafter service: each drafter is right where `right_draft` says so, and else has the label second.

    A checkpoint is a file with a salt in it.
    """
    app = FastAPI()

    def card(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "family": "dflash",
            "format": "table",
            "block_size": drafts + 1,
            "layout": "fill-in",
            "drafts": drafts,
            "taps": [1, 16],
            "mask_token_id": 1,
            "hidden_size": HIDDEN,
            "target_hidden_size": hidden_size,
            "vocab_size": VOCAB_SIZE,
            "sha256": f"{salts[name]:064x}",
            "path": "/models/x",
            "num_parameters": 1,
            "memory_bytes": 1,
            "training_numerics": training,
        }

    @app.get("/info")
    def info() -> dict[str, Any]:
        return {
            "service": "drafter",
            "version": "0.1.0",
            "drafters": [card(name) for name in salts],
            "numerics": NUMERICS,
            "limits": LIMITS,
            "target_url": target_url,
            "target_model": MODEL | {"revision": "sha256:9999"} if other_target else MODEL,
            "families": ["dflash"],
        }

    @app.get("/drafters")
    def drafters() -> dict[str, Any]:
        return {"drafters": [card(name) for name in salts]}

    @app.post("/drafters")
    async def load(request: Request) -> Any:
        body = await request.json()
        content = Path(body["path"]).read_text()
        if not content.isdigit():
            return _error(422, "checkpoint_corrupt", f"{body['path']}: not a number")
        salts[body["name"]] = int(content)
        return card(body["name"])

    @app.delete("/drafters/{name}")
    def unload(name: str) -> Response:
        if name not in salts:
            return _error(404, "drafter_unknown", f"no drafter {name!r}")
        del salts[name]
        return Response(status_code=204)

    @app.post("/expected_acceptance")
    async def expected_acceptance(request: Request) -> Any:
        body = await request.json()
        ids, start, name = body["token_ids"], body["response_start"], body["drafter"]
        if body["hidden"]["handle"] not in ledger.handles:
            return _error(410, "handle_gone", "no such handle")
        anchors = list(range(start, len(ids) - 1))
        # Certain where the drafter is right, impossible where it is wrong, and unknown past the end of the text.
        rows = np.asarray(
            [
                [float(right_draft(salts[name], a, k)) if a + 1 + k < len(ids) else -1.0 for k in range(drafts)]
                for a in anchors
            ],
            "<f4",
        ).tobytes()
        fields = {
            "schema": "tauscope.acceptance/1",
            "drafter": {key: card(name)[key] for key in SUMMARY_FIELDS} | {"warnings": []},
            "numerics": NUMERICS,
            "anchors": np.asarray(anchors, "<i4").tobytes(),
            "sampled": rows,
            "greedy": rows,
        }
        fields |= {"xxh3_128": _hash(fields["anchors"], rows, rows), "timing_ms": {"draft": 1.0}, "end": True}
        return Response(msgpack.packb(fields), media_type="application/msgpack")

    @app.post("/draft_block")
    async def draft_block(request: Request) -> Response:
        body = await request.json()
        ids, start, name = body["token_ids"], body["response_start"], body["drafter"]
        with ledger.lock:
            ledger.calls.append(("draft", (name, tuple(ids))))
        if body["hidden"]["handle"] not in ledger.handles:
            return _error(410, "handle_gone", "no such handle")
        if start in ledger.fail:
            return _error(500, "out_of_memory", "planned")
        anchors = list(range(start, len(ids) - 1)) if body["anchors"] == "response" else body["anchors"]
        longer = [*ids, *model.generate(ids, drafts + 1, stop_ids=())]
        top_k = body["top_k"]
        top = np.zeros((len(anchors), drafts, top_k), "<i4")
        for row, anchor in enumerate(anchors):
            for column in range(drafts):
                label = longer[anchor + 1 + column]
                others = [(label + step) % VOCAB_SIZE for step in range(1, top_k + 1)]
                right = right_draft(salts[name], anchor, column)
                top[row, column] = ([label, *others] if right else [others[0], label, *others[1:]])[:top_k]
        logprobs = np.broadcast_to(-np.arange(1, top_k + 1, dtype="<f4"), top.shape)
        summary = {key: card(name)[key] for key in SUMMARY_FIELDS}
        fields = {
            "schema": "tauscope.draft/1",
            "drafter": summary | {"warnings": []},
            "numerics": NUMERICS,
            "anchors": np.asarray(anchors, "<i4").tobytes(),
            "token_ids": np.ascontiguousarray(top[..., 0]).tobytes(),
            "top_ids": top.tobytes(),
            "top_logprobs": np.ascontiguousarray(logprobs).tobytes(),
        }
        fields |= {"xxh3_128": _hash(*(fields[name] for name in ("anchors", "token_ids", "top_ids", "top_logprobs")))}
        fields |= {"timing_ms": {"draft": 1.0}, "end": True}
        return Response(msgpack.packb(fields), media_type="application/msgpack")

    return app
