"""Encodes requests: JSON, or msgpack around payloads that are not copied."""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

from tauscope_wire.framing import Part, pack_parts

__all__ = ["JSON", "MSGPACK", "RequestBody", "encode"]

JSON: Final = "application/json"

MSGPACK: Final = "application/msgpack"


class RequestBody:
    """An encoded request; iterating gives its parts without joining them."""

    def __init__(self, content_type: str, parts: list[Part]) -> None:
        self.content_type = content_type
        self.nbytes = sum(map(len, parts))
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)


def encode(request: BaseModel) -> RequestBody:
    """JSON, or msgpack when there are bytes in it, which JSON cannot carry.

    Fields that are None are left out: None is the default of every field that takes it, and a service that is older
    than the field refuses what it does not know. What a caller put into a free map (`template_kwargs`) stays, nulls
    included.
    """
    fields = request.model_dump(mode="python", by_alias=True, exclude_none=True)
    if _has_bytes(fields):
        return RequestBody(MSGPACK, pack_parts(fields))
    return RequestBody(JSON, [request.model_dump_json(by_alias=True, exclude_none=True).encode()])


def _has_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_bytes, value.values()))
    return isinstance(value, bytes)  # no message has bytes inside of a list
