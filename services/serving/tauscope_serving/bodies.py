"""Request bodies: JSON or msgpack with the same fields, bounded in size and time before they are parsed."""

import asyncio
import json
from typing import Any, NoReturn, TypeVar

import msgpack
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from tauscope_serving.errors import first_problem
from tauscope_wire.errors import DeadlineError, ErrorCode, MalformedBodyError, TooLargeError, UnavailableError

MSGPACK_TYPES = frozenset({"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"})

BODY_GRACE_S = 30.0
"""A body may take this long, whatever its size."""

SLOWEST_BYTES_PER_S = 64 << 10
"""Each byte that arrived buys time at this rate (half a megabit per second): slow lines pass, stalled ones do not."""

IN_FLIGHT_BYTES = 4 << 30
"""Bodies of all requests together while they are received and parsed: two of the largest that the drafter takes."""

M = TypeVar("M", bound=BaseModel)


class BodyBudget:
    """Bounds the memory of bodies that are being received, over all callers. Used on the event loop only.

    Args:
        max_bytes: of all bodies together; one alone may exceed it.
    """

    def __init__(self, max_bytes: int = IN_FLIGHT_BYTES) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    def take(self, nbytes: int, *, of: int) -> None:
        """Hold `nbytes` more for a body that holds `of` so far.

        Raises:
            UnavailableError: no room (`queue_full`).
        """
        if self.held_bytes > of and self.held_bytes + nbytes > self._max_bytes:
            raise UnavailableError(
                f"bodies of {self.held_bytes} bytes are being received and at most {self._max_bytes} may be; try again "
                "later, or send handles in place of states",
                ErrorCode.QUEUE_FULL,
                details={"limit": "in_flight_body_bytes", "bound": self._max_bytes},
            )
        self.held_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        """Hold that much less."""
        self.held_bytes -= nbytes


async def read_bytes(
    request: Request, *, max_bytes: int, grace_s: float = BODY_GRACE_S, budget: BodyBudget | None = None
) -> bytearray:
    """The whole body; stops reading at the first byte over the limit.

    Args:
        request: whose body is read.
        max_bytes: limit on it.
        grace_s: it may take this long, whatever its size.
        budget: shared by all bodies; the caller gives back the length of what is returned.

    Raises:
        TooLargeError: the declared or the real length exceeds `max_bytes`.
        DeadlineError: it came slower than `SLOWEST_BYTES_PER_S` after `grace_s`.
        UnavailableError: the caller left in the middle (code `cancelled`), or too much is being received at once.
    """
    budget = budget or BodyBudget()
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:19]) > max_bytes:
        _refuse_size(int(declared[:19]), max_bytes)
    body = bytearray()
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout(grace_s) as allowance:
            async for piece in request.stream():
                budget.take(len(piece), of=len(body))
                body += piece
                if len(body) > max_bytes:
                    _refuse_size(len(body), max_bytes)
                allowance.reschedule(started + grace_s + len(body) / SLOWEST_BYTES_PER_S)
    except BaseException as error:
        budget.give_back(len(body))
        raise _reason(error, len(body), loop.time() - started) from None
    return body


def _reason(error: BaseException, received: int, waited_s: float) -> BaseException:
    """What a body that did not come whole means to its caller."""
    if isinstance(error, TimeoutError):
        return DeadlineError(
            f"only {received} bytes of the body came in {waited_s:.0f} s; send it faster",
            details={"received_bytes": received},
        )
    if isinstance(error, ClientDisconnect):
        return UnavailableError("the caller closed the connection before its body was there", ErrorCode.CANCELLED)
    return error


def _refuse_size(found: int, limit: int) -> NoReturn:
    raise TooLargeError(
        f"body of {found} bytes or more: at most {limit} are accepted",
        ErrorCode.BODY_TOO_LARGE,
        details={"limit": "max_body_bytes", "value": found, "bound": limit},
    )


async def read_body(request: Request, model: type[M], *, max_bytes: int) -> M:
    """Parse and check the body of a request.

    Args:
        request: the request; its `Content-Type` chooses msgpack, anything else is JSON.
        model: what it must be.
        max_bytes: limit on the body.

    Raises:
        TooLargeError: over the limit.
        MalformedBodyError: not JSON/msgpack, or not a map.
        RequestError: a field is wrong; the message names it.
        DeadlineError, UnavailableError: see `read_bytes`.
    """
    budget: BodyBudget = request.app.state.bodies
    body = await read_bytes(request, max_bytes=max_bytes, budget=budget)
    try:
        return _parse(body, model, request.headers.get("content-type", ""))
    finally:
        budget.give_back(len(body))


def _parse(body: bytearray, model: type[M], content_type: str) -> M:
    media_type = content_type.partition(";")[0].strip().lower()
    fields = _unpack(body) if media_type in MSGPACK_TYPES else _load_json(body)
    if not isinstance(fields, dict):
        raise MalformedBodyError(f"the body must be a map, not {type(fields).__name__}")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise first_problem(error.errors(include_url=False, include_input=False)) from None


def described_body(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra=`: what `read_body` accepts, so that the OpenAPI document shows it."""
    content = {"schema": inline_schema(model)}
    return {"requestBody": {"required": True, "content": {"application/json": content, "application/msgpack": content}}}


def inline_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema of `model` without references (our requests are not recursive)."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                name = str(node["$ref"]).rpartition("/")[2]
                return resolve(definitions[name] | {k: v for k, v in node.items() if k != "$ref"})
            return {k: resolve(v) for k, v in node.items()}
        return [resolve(v) for v in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved


def _unpack(body: bytearray) -> Any:
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=True, object_pairs_hook=_map_of)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MalformedBodyError(f"the body is not msgpack: {type(error).__name__}") from None


def _load_json(body: bytearray) -> Any:
    try:
        return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_map_of)
    except (ValueError, RecursionError) as error:
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise MalformedBodyError(
            f"the body is not JSON{where}; send Content-Type: application/msgpack for msgpack"
        ) from None


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map; a key given twice is an error, because which of the two counts would be anybody's guess."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedBodyError("a field is given twice in one map; give it once")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
