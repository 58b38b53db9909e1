"""Server of the wire benchmark, a process of its own: one tensor answer, and the same bytes from a static route.

Prints its port. `GET /memory` answers resident bytes now and at their peak since the last call.
"""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import ml_dtypes
import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tauscope_serving.answers import TensorResponse
from tauscope_wire.checksums import digest_of
from tauscope_wire.messages import ModelInfo, Numerics
from tauscope_wire.writer import Body, chunks_of, hidden_body

PLANES, POSITIONS, HIDDEN = 5, 4096, 5120
"""Five taps of a 5120-wide target over a 4k prompt in BF16: 210 MB."""

CHUNK_BYTES = 64 << 20
"""As the target service cuts its answers."""


def make_states() -> np.ndarray:
    """[planes, positions, hidden] bfloat16; any finite bits would do."""
    states = np.random.default_rng(7).standard_normal((PLANES, POSITIONS, HIDDEN), dtype=np.float32)
    return states.astype(ml_dtypes.bfloat16)


def make_body(states: np.ndarray, digest: str | None) -> Body:
    """The answer of the benchmark."""
    return hidden_body(
        request_id="bench",
        model=ModelInfo(
            id="bench",
            revision="r",
            config_sha256="c",
            num_layers=64,
            hidden_size=HIDDEN,
            vocab_size=1 << 18,
            stop_token_ids=[1],
        ),
        numerics=Numerics(
            revision="r",
            compute_dtype="bfloat16",
            weights_dtype="bfloat16",
            device="cpu",
            torch="-",
            transformers="-",
            attention="sdpa",
            weights_mode="cpu",
        ),
        requested={"convention": "output", "layers": [1, 16, 31, 46, 61]},
        planes=[1, 16, 31, 46, 61],
        dtype="bfloat16",
        token_ids=np.arange(POSITIONS, dtype=np.int32),
        positions=(0, POSITIONS),
        shape=states.shape,
        handle=None,
        chunks=chunks_of(states, 0, max_rows=CHUNK_BYTES // (PLANES * HIDDEN * 2)),
        digest=digest,
        logits=None,
        timing_ms={"total": 0.0},
    )


def make_app() -> FastAPI:
    """The two routes that are compared."""
    app = FastAPI()
    states = make_states()
    inline, stored = make_body(states, None), make_body(states, digest_of(states))
    static = memoryview(inline.tobytes())

    @app.post("/hidden_states")
    async def hidden_states() -> TensorResponse:
        return TensorResponse(inline, "bench")

    @app.get("/hidden_states/{handle}")
    async def hidden_states_of_a_handle() -> TensorResponse:
        return TensorResponse(stored, "bench")

    @app.get("/static")
    async def static_bytes() -> StreamingResponse:
        async def slices() -> AsyncIterator[memoryview]:
            for low in range(0, len(static), 1 << 20):
                yield static[low : low + (1 << 20)]

        headers = {"Content-Length": str(len(static))}
        return StreamingResponse(slices(), media_type="application/octet-stream", headers=headers)

    @app.get("/memory")
    async def memory() -> dict[str, int]:
        return resident_bytes()

    return app


def resident_bytes() -> dict[str, int]:
    """Resident set of this process: now, and its peak since the last call, which starts a new peak."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {name: int(fields[key].split()[0]) * 1024 for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}
    Path("/proc/self/clear_refs").write_text("5")
    return sizes


def main() -> None:
    """Serve on a free port of loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(make_app(), log_level="warning", timeout_keep_alive=75)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
