"""xxh3_128 over tensor data: the chunk checksums and the digest of an answer.

A checksum guards against transport and memory errors, not against an attacker.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy.typing as npt
import xxhash

from tauscope_wire.framing import Payload, byte_view

__all__ = ["HEX_LENGTH", "checksum", "digest_of"]

HEX_LENGTH: Final = 32
"""Lower-case hex digits of a 128-bit checksum."""


def checksum(buffers: Iterable[Payload]) -> str:
    """Checksum over the bytes of several buffers in order, as hex."""
    state = xxhash.xxh3_128()
    for buffer in buffers:
        state.update(byte_view(buffer))
    return state.hexdigest()


def digest_of(states: npt.NDArray[Any]) -> str:
    """Digest of hidden states: checksum over the row-major [planes, positions, hidden] data.

    With one chunk it equals that chunk's checksum.
    """
    return checksum([states])
