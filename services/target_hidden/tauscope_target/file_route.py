"""`GET /hidden_states/{handle}/file`: names the file of stored states to a reader on this machine, which maps it."""

import asyncio

from fastapi import APIRouter, Request

from tauscope_serving.access import DraftCaller
from tauscope_serving.settings import is_loopback_host
from tauscope_target.parts import TargetParts
from tauscope_wire.errors import ErrorCode, MismatchError
from tauscope_wire.messages import HiddenFile


class FileRoute:
    """Handler of the route.

    A path is worth something only to a process of this user on this machine: the file is private and its name random.
    All the same it is told only where the service was started with a folder for the store, to a key that may both draft
    and read, for a handle that this key may read, and to a peer on loopback or a Unix socket. A reverse proxy or tunnel
    makes a remote caller look like one on this machine: it learns a path that it cannot open.
    """

    def __init__(self, parts: TargetParts) -> None:
        self._parts = parts

    def router(self) -> APIRouter:
        """The route."""
        router = APIRouter(tags=["hidden states"])
        router.add_api_route(
            "/hidden_states/{handle}/file",
            self.lease,
            methods=["GET"],
            summary="The file of stored states, for a reader on the same machine",
        )
        return router

    async def lease(self, request: Request, caller: DraftCaller, handle: str) -> HiddenFile:
        """Where stored states lie, kept there for `lease_s` seconds."""
        parts, facts = self._parts, self._parts.engine.facts
        caller.require("read")
        if parts.settings.store_dir is None or not _is_local(request):
            raise MismatchError(
                "this service names no files to this caller: read /hidden_states", ErrorCode.MODE_CANNOT
            )
        entry, file, lease_s = await asyncio.to_thread(parts.store.lease, handle, caller.name)
        num_planes, num_rows, hidden = entry.states.shape
        return HiddenFile(
            handle=handle,
            model=facts.model,
            numerics=facts.numerics,
            planes=list(entry.planes),
            dtype=entry.dtype,
            positions=(entry.start, entry.stop),
            shape=(num_planes, num_rows, hidden),
            num_tokens=len(entry.token_ids),
            digest=entry.digest,
            path=str(file.path),
            nbytes=file.nbytes,
            offset=file.offset,
            lease_s=lease_s,
        )


def _is_local(request: Request) -> bool:
    """Whether the peer of the connection is on this machine; over a Unix socket it has no address."""
    return request.client is None or not request.client.host or is_loopback_host(request.client.host)
