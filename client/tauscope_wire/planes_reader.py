"""Reads which layers were asked for and which planes came, and holds them against each other."""

from collections.abc import Sequence
from typing import Any, get_args

from tauscope_wire.errors import ErrorCode, RequestError
from tauscope_wire.layers import EMBEDDING, FINAL_NORM, Convention, Plane, canonical_layers
from tauscope_wire.parser import PullParser

__all__ = ["all_integers", "read_planes", "read_requested"]


def read_requested(parser: PullParser, where: str) -> dict[str, Any]:
    """The map with `convention` and `layers`.

    Raises:
        WireError: not such a map.
    """
    value = parser.value(where)
    if (
        not isinstance(value, dict)
        or value.get("convention") not in get_args(Convention)
        or not all_integers(value.get("layers"))
    ):
        raise parser.fail(where, "expected a map with convention ('output' or 'tuple') and layers (integers)")
    return value


def read_planes(
    parser: PullParser,
    where: str,
    requested: dict[str, Any],
    *,
    num_layers: int,
    expect: Sequence[Plane] | None,
) -> tuple[Plane, ...]:
    """The names of the planes, which must be what `requested` converts to.

    Args:
        parser: stands before the array.
        where: for messages.
        requested: as read before.
        num_layers: decoder layers of the model.
        expect: what the caller asked for, canonical; None takes any.

    Raises:
        WireError: names that are none, come twice, are outside of the model, or are not those asked for.
    """
    planes = parser.value(where)
    has_final_norm = isinstance(planes, list) and planes[-1:] == [FINAL_NORM]
    layers = planes[:-1] if has_final_norm else planes
    if not planes or not all_integers(layers) or len(set(layers)) != len(layers):
        raise parser.fail(
            where, "expected distinct layer ids, and 'final_norm' only at the end", ErrorCode.LABEL_MISMATCH
        )
    low, high = EMBEDDING, num_layers - 1
    for index, layer in enumerate(layers):
        if not low <= layer <= high:
            raise parser.fail(f"{where}[{index}]", f"{layer} is outside of {low}..{high}", ErrorCode.LABEL_MISMATCH)
    if expect is not None and planes != list(expect):
        raise parser.fail(where, f"{planes} came, {list(expect)} was asked for", ErrorCode.LABEL_MISMATCH)
    try:
        echoed = canonical_layers(requested["layers"], requested["convention"], num_layers=num_layers)
    except RequestError as error:
        raise parser.fail("requested", error.message, ErrorCode.LABEL_MISMATCH) from None
    if echoed != layers:
        raise parser.fail(
            where,
            f"{layers} are not the canonical ids of requested.layers={requested['layers']} in the "
            f"{requested['convention']!r} convention ({echoed})",
            ErrorCode.LABEL_MISMATCH,
        )
    return tuple(planes)


def all_integers(value: Any) -> bool:
    """Whether it is a list of integers (bools are none)."""
    return isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
