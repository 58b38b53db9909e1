"""Tensor answers: a wire `Body` handed to the socket in slices, with its length known up front."""

from collections.abc import Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tauscope_wire.writer import Body

MSGPACK = "application/msgpack"


class TensorResponse(StreamingResponse):
    """Streams a body of SPEC.md without a second copy of its payload.

    Args:
        body: what to send; its slices are taken in a worker thread, so they may wait for a pass that still computes.
        request_id: echoed in `X-Request-Id`.
        on_close: called exactly once, when the body is sent or given up (unpins a handle, say).
    """

    def __init__(self, body: Body, request_id: str, *, on_close: Callable[[], None] | None = None) -> None:
        headers = {"Content-Length": str(body.nbytes), "X-Request-Id": request_id}
        super().__init__(body.slices(), media_type=MSGPACK, headers=headers)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body; a caller that vanishes ends it early."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._on_close is not None:
                self._on_close()
