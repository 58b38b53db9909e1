"""Request bodies: JSON or msgpack with the same fields, bounded before they are parsed."""

import json
from typing import Any, NoReturn, TypeVar

import msgpack
from fastapi import Request
from pydantic import BaseModel, ValidationError

from tauscope_wire.errors import ErrorCode, MalformedBodyError, RequestError, TooLargeError

MSGPACK_TYPES = frozenset({"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"})

M = TypeVar("M", bound=BaseModel)


async def read_bytes(request: Request, *, max_bytes: int) -> bytearray:
    """The whole body; stops reading at the first byte over the limit.

    Raises:
        TooLargeError: the declared or the real length exceeds `max_bytes`.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        _refuse_size(int(declared), max_bytes)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            _refuse_size(len(body), max_bytes)
    return body


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
    """
    body = await read_bytes(request, max_bytes=max_bytes)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    fields = _unpack(body) if media_type in MSGPACK_TYPES else _load_json(body)
    if not isinstance(fields, dict):
        raise MalformedBodyError(f"the body must be a map, not {type(fields).__name__}")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _first_problem(error) from None


def _unpack(body: bytearray) -> Any:
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=True, max_buffer_size=len(body))
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MalformedBodyError(f"the body is not msgpack: {type(error).__name__}") from None


def _load_json(body: bytearray) -> Any:
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise MalformedBodyError(
            f"the body is not JSON{where}; send Content-Type: application/msgpack for msgpack"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _first_problem(error: ValidationError) -> RequestError:
    """One line that names the field; input values are left out, they may be prompt text."""
    problem = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in problem["loc"]) or "body"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    message = problem["msg"].removeprefix("Value error, ")
    return RequestError(f"{field}: {message}{more}", details={"field": field, "kind": problem["type"]})
