"""A drafter service without weights whose skill depends on the conditions it is asked for."""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import xxhash
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from kit.engines import VOCAB_SIZE
from kit.table_services import HIDDEN, LIMITS, MODEL, NUMERICS, Ledger

DRAFTS = 4
CARD = {
    "name": "probed",
    "family": "dflash",
    "format": "table",
    "block_size": DRAFTS + 1,
    "layout": "fill-in",
    "drafts": DRAFTS,
    "taps": [1, 16, 31],
    "mask_token_id": 1,
    "hidden_size": HIDDEN,
    "target_hidden_size": HIDDEN,
    "vocab_size": VOCAB_SIZE,
    "sha256": "0" * 64,
    "path": "/models/x",
    "num_parameters": 1,
    "memory_bytes": 1,
    "rope": {"theta": 1e6, "dim": 8, "kind": "default"},
    "windows": [{"size": None, "causal": False}],
}
_SUMMARY = ("name", "family", "block_size", "layout", "drafts", "taps", "sha256")

Skill = Callable[[dict[str, Any]], float]


def conditioned_drafter(ledger: Ledger, skill: Skill, *, card: dict[str, Any] | None = None) -> FastAPI:
    """Drafts that follow the text for a pseudo-random number of tokens, on average about `skill(conditions)`.

    Args:
        ledger: handles, calls, and what shall go wrong.
        skill: of the fields that deviate; a negative number refuses the condition.
        card: fields of the card that differ.
    """
    app, shown = FastAPI(), CARD | (card or {})

    @app.get("/info")
    def info() -> dict[str, Any]:
        return {
            "service": "drafter",
            "version": "0.1.0",
            "drafters": [shown],
            "numerics": NUMERICS,
            "limits": LIMITS,
            "target_url": "http://target",
            "target_model": MODEL,
            "families": ["dflash"],
        }

    @app.post("/draft_block")
    async def draft_block(request: Request) -> Response:
        body = await request.json()
        ids, anchors = body["token_ids"], body["anchors"]
        asked = {k: v for k, v in (body.get("conditions") or {}).items() if v not in (None, 0, False, [])}
        with ledger.lock:
            ledger.calls.append(("draft", (len(ids), tuple(sorted(asked)))))
        if body["hidden"]["handle"] not in ledger.handles:
            return _error(410, "handle_gone", "no such handle")
        if body["response_start"] in ledger.fail:
            return _error(500, "internal", "planned")
        level = skill(asked)
        if level < 0:
            return _error(422, "not_supported", f"conditions {sorted(asked)}: not for this drafter")
        rng = np.random.default_rng(
            [len(ids), *sorted(xxhash.xxh32_intdigest(repr(item).encode()) for item in asked.items())]
        )
        drafts = np.zeros((len(anchors), DRAFTS), "<i4")
        for row, anchor in enumerate(anchors):
            right = rng.poisson(level)
            for column in range(DRAFTS):
                place = anchor + 1 + column
                label = ids[place] if place < len(ids) else 0
                drafts[row, column] = label if column < right else (label + 1) % VOCAB_SIZE
        arrays = [
            np.asarray(anchors, "<i4"),
            drafts,
            drafts[..., None].copy(),
            np.full((len(anchors), DRAFTS, 1), -1, "<f4"),
        ]
        digest = xxhash.xxh3_128()
        for array in arrays:
            digest.update(array.tobytes())
        summary = {key: shown[key] for key in _SUMMARY} | {"warnings": []}
        fields = {"schema": "tauscope.draft/1", "drafter": summary | ({"conditions": asked} if asked else {})}
        fields |= {"numerics": NUMERICS}
        names = ("anchors", "token_ids", "top_ids", "top_logprobs")
        fields |= {name: array.tobytes() for name, array in zip(names, arrays, strict=True)}
        fields |= {"xxh3_128": digest.hexdigest(), "timing_ms": {}, "end": True}
        return Response(msgpack.packb(fields), media_type="application/msgpack")

    return app


def _error(status: int, code: str, message: str) -> Response:
    body = {"error": {"code": code, "message": message, "request_id": "r", "details": {}}}
    return JSONResponse(body, status_code=status)
