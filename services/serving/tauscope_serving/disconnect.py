"""Stops work for a caller that has gone away."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from tauscope_wire.errors import ErrorCode, UnavailableError

T = TypeVar("T")


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; cancel it when the caller closes the connection. The body must have been read before.

    Raises:
        UnavailableError: the caller has gone (code `cancelled`); nobody will see the answer.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise UnavailableError("the caller closed the connection", ErrorCode.CANCELLED)
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
