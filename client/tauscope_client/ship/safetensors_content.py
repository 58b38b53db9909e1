"""A safetensors file without what is not part of the model, from its header alone."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from tauscope_client.ship.content import Content, Made, Segment, Stored
from tauscope_wire.errors import CheckpointError

__all__ = ["Selection", "model_part"]

MAX_HEADER_BYTES = 100 << 20
"""The format's own limit."""

NOT_MODEL = re.compile(
    r"(^|[._])(optimizer|optim|lr_scheduler|scheduler|grad_scaler|scaler|rng_state|exp_avg|exp_avg_sq|max_exp_avg_sq|"
    r"momentum_buffer|master_weights?)([._]|$)",
    re.IGNORECASE,
)
"""Names of what trainers keep beside the weights."""

ReadRange = Callable[[int, int], bytes]


class Selection(NamedTuple):
    """What is shipped of a file.

    Attributes:
        content: of the destination file.
        num_tensors: kept.
        dropped: names of what is left out.
    """

    content: Content
    num_tensors: int
    dropped: tuple[str, ...]


def model_part(name: str, nbytes: int, read: ReadRange) -> Selection:
    """Keep the model tensors of a safetensors file, in their order in the file.

    Args:
        name: for messages.
        nbytes: size of the file.
        read: bytes [offset, offset + n) of it.

    Raises:
        CheckpointError: not a safetensors file.
    """
    header, start = _header(name, nbytes, read)
    metadata = header.pop("__metadata__", None)
    kept = {tensor: facts for tensor, facts in header.items() if not NOT_MODEL.search(tensor)}
    dropped = tuple(sorted(header.keys() - kept.keys()))
    if not dropped:
        return Selection(Content.whole(nbytes), len(kept), ())
    if not kept:
        raise CheckpointError(
            f"{name}: no model tensors in it ({len(dropped)} of a trainer's); ship it without --weights-only"
        )
    fields: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data: list[Segment] = []
    place = 0
    for tensor, facts in sorted(kept.items(), key=lambda item: item[1]["data_offsets"][0]):
        first, last = facts["data_offsets"]
        fields[tensor] = facts | {"data_offsets": [place, place + last - first]}
        data.append(Stored(start + first, last - first))
        place += last - first
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of eight
    return Selection(Content([Made(len(text).to_bytes(8, "little") + text), *data]), len(kept), dropped)


def _header(name: str, nbytes: int, read: ReadRange) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(read(0, 8), "little") if nbytes >= 8 else -1
    if not 0 < length <= min(MAX_HEADER_BYTES, nbytes - 8):
        raise CheckpointError(f"{name}: not a safetensors file (header of {length} bytes in a file of {nbytes})")
    try:
        header = json.loads(read(8, length))
        spans = [facts["data_offsets"] for tensor, facts in header.items() if tensor != "__metadata__"]
        is_sound = all(0 <= first <= last <= nbytes - 8 - length for first, last in spans)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{name}: not a safetensors file (its header cannot be read)") from None
    if not is_sound:
        raise CheckpointError(f"{name}: a tensor lies outside of the file of {nbytes} bytes; it was cut short")
    return header, 8 + length
