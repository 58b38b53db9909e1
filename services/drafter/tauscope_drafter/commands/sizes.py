"""Sizes of memory on the command line."""

import re

from tauscope_wire.errors import RequestError

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_bytes(text: str) -> int:
    """`3.5GiB`, `512MiB`, `2GB`, or plain bytes.

    Raises:
        RequestError: not a size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise RequestError(f"{text!r} is no size; write for example 3.5GiB, 512MiB or 2GB")
    return int(float(match.group(1)) * unit)


def format_bytes(count: float) -> str:
    """A size for people, in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
