"""Tensor answers: a wire `Body` handed to the socket in slices, with its length known up front."""

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from tauscope_wire.body import Body
from tauscope_wire.errors import UnreachableError
from tauscope_wire.framing import Part

MSGPACK = "application/msgpack"

SLICE_TIMEOUT_S = 60.0
"""A caller that does not take one slice (1 MiB) within this time is given up: its answer would hold memory for ever."""


async def _slices(body: Body) -> AsyncIterator[Part]:
    """The slices of `body`; only the step to the next chunk takes a thread, which costs as much as sending a slice."""
    segments = body.segments()
    while (segment := await run_in_threadpool(next, segments, None)) is not None:
        for part in segment:
            yield part


class TensorResponse(StreamingResponse):
    """Streams a body of SPEC.md without a second copy of its payload.

    Args:
        body: what to send; a worker thread waits for each chunk, so they may come from a pass that still computes.
        request_id: echoed in `X-Request-Id`.
        on_close: called exactly once, when the body is sent or given up (unpins a handle, say).
        slice_timeout_s: bound on one slice.
    """

    def __init__(
        self,
        body: Body,
        request_id: str,
        *,
        on_close: Callable[[], None] | None = None,
        slice_timeout_s: float = SLICE_TIMEOUT_S,
    ) -> None:
        headers = {"Content-Length": str(body.nbytes), "X-Request-Id": request_id}
        super().__init__(_slices(body), media_type=MSGPACK, headers=headers)
        self._on_close = on_close
        self._slice_timeout_s = slice_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body; a caller that vanishes or stops reading ends it early."""

        async def bounded(message: Message) -> None:
            try:
                async with asyncio.timeout(self._slice_timeout_s):
                    await send(message)
            except TimeoutError:
                raise UnreachableError(f"the caller took nothing for {self._slice_timeout_s:g} s") from None

        try:
            await super().__call__(scope, receive, bounded)
        finally:
            if self._on_close is not None:
                self._on_close()
