"""Sizes on the command line: `2.5GiB`, `800MB`, `4096`."""

import re

from tauscope_wire.errors import RequestError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}


def parse_bytes(text: str) -> int:
    """Bytes of a size.

    Raises:
        RequestError: not a number with a known unit.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise RequestError(f"{text!r} is not a size: give a number and a unit, for example 2.5GiB or 800MB")
    return int(float(match[1]) * unit)
