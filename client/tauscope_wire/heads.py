"""The small parts that both tensor bodies have: schema, models, timings, the end."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tauscope_wire.errors import ErrorCode
from tauscope_wire.fields import FieldWalk
from tauscope_wire.parser import PullParser

__all__ = ["read_end", "read_model", "read_schema", "read_timing"]

_M = TypeVar("_M", bound=BaseModel)


def read_schema(parser: PullParser, order: Sequence[str], schema: str) -> FieldWalk:
    """Open the top map and check that it is what it should be.

    Raises:
        WireError: no map (`body_corrupt`), or another schema (`schema_unknown`).
    """
    fields = FieldWalk(parser, order)
    found = parser.string(fields.enter("schema"))
    if found != schema:
        raise parser.fail(
            "schema",
            f"{found!r}, this reader knows {schema!r}; the address is of another service or of another version",
            ErrorCode.SCHEMA_UNKNOWN,
            found=found,
            known=schema,
        )
    return fields


def read_model(parser: PullParser, where: str, model: type[_M]) -> _M:
    """Read a small map into a pydantic model.

    Raises:
        WireError: not a map, or fields that the model refuses.
    """
    value: Any = parser.value(where)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([where, *map(str, first["loc"])])
        raise parser.fail(place, first["msg"]) from None


def read_timing(parser: PullParser, where: str) -> dict[str, float]:
    """Read the map of timings in ms.

    Raises:
        WireError: not a map of numbers.
    """
    value = parser.value(where)
    if not isinstance(value, dict):
        raise parser.fail(where, f"expected a map, found {type(value).__name__}")
    for key, number in value.items():
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise parser.fail(f"{where}.{key}", f"expected a number, found {type(number).__name__}")
    return {key: float(number) for key, number in value.items()}


def read_end(parser: PullParser, fields: FieldWalk) -> None:
    """Check that the body is complete and that nothing follows.

    Raises:
        WireError: no `end: true`, fields after it (`body_corrupt`), or bytes after the map (`body_trailing`).
    """
    where = fields.enter("end")
    if parser.value(where) is not True:
        raise parser.fail(where, "expected true")
    fields.finish(last=True)
    if not parser.stream.at_end():
        raise parser.fail("body", "bytes follow after its end", ErrorCode.BODY_TRAILING)
