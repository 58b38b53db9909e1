"""Maps the file that `GET /hidden_states/{handle}/file` names: states in place, no copy, nothing over HTTP.

What the answer says is checked against the file before a number of it is used, so that another machine's path, a file
of an earlier process, somebody else's file, or a half one is an error and never states. A reader may fall back to HTTP
whenever this module refuses.
"""

import contextlib
import json
import mmap
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from tauscope_wire.checksums import digest_of
from tauscope_wire.dtypes import NUMPY_DTYPES
from tauscope_wire.errors import ErrorCode, UnreachableError, WireError
from tauscope_wire.messages import HiddenFile

__all__ = ["FILE_NAME", "FILE_SCHEMA", "MappedStates", "map_states"]

FILE_SCHEMA: Final = "tauscope.states/1"
FILE_NAME: Final = re.compile(r"([0-9a-f]{32})\.safetensors")
"""A random token, used once."""

_MAX_HEADER_BYTES: Final = 1 << 20
_MADV_POPULATE_READ: Final = 22
"""Linux 5.14: enter all pages at once. One fault a page costs four times as much as the digest of its bytes."""
_TAGS: Final = {"bfloat16": "BF16", "float32": "F32"}


@dataclass(frozen=True, eq=False, kw_only=True)
class MappedStates:
    """States in a mapped file.

    Attributes:
        states: [P, n, H], mapped copy-on-write: a write changes the caller's pages, never the file.
        token_ids: int32 [T], the whole sequence, copied.
    """

    states: npt.NDArray[Any]
    token_ids: npt.NDArray[np.int32] = field(repr=False)


def map_states(named: HiddenFile) -> MappedStates:
    """Map the states of a file, which stay readable after the service has removed it.

    Args:
        named: the service's answer.

    Raises:
        UnreachableError: no such file here, or not this user's: the service runs on another machine, as another user,
            or has removed the file.
        WireError: the file is not the one of the answer (`label_mismatch`), or its states do not have their digest
            (`checksum_mismatch`).
    """
    name = FILE_NAME.fullmatch(Path(named.path).name)
    if name is None or not os.path.isabs(named.path):
        raise _other(f"{named.path} is no name of a file of states")
    try:
        # without waiting for a writer, should it be a pipe; a link could lead anywhere
        descriptor = os.open(named.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnreachableError(f"{named.path}: {error.strerror}; read the handle over HTTP") from None
    with os.fdopen(descriptor, "rb") as stream:
        _check_file(os.fstat(descriptor), named)
        mapped = _map(stream, named, token=name[1])
    if digest_of(mapped.states) != named.digest:
        raise WireError(f"{named.path}: the states do not have their digest", ErrorCode.CHECKSUM_MISMATCH)
    return mapped


def _check_file(status: os.stat_result, named: HiddenFile) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _other(f"{named.path} is no regular file")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UnreachableError(f"{named.path} is not a private file of this user; read the handle over HTTP")
    if status.st_size != named.nbytes:
        raise _other(f"{named.path} has {status.st_size} bytes; the service says {named.nbytes}")


def _map(stream: BinaryIO, named: HiddenFile, *, token: str) -> MappedStates:
    dtype = NUMPY_DTYPES[named.dtype]
    start, stop = named.positions
    num_planes, num_rows, hidden = named.shape
    if num_planes != len(named.planes) or num_rows != stop - start or hidden != named.model.hidden_size:
        raise _other(f"shape {list(named.shape)} is not that of planes, positions and model")
    length = int.from_bytes(stream.read(8), "little")
    base = 8 + length
    if length > _MAX_HEADER_BYTES:
        raise _other(f"{named.path}: its header claims {length} bytes, at most {_MAX_HEADER_BYTES}")
    states_bytes = num_planes * num_rows * hidden * dtype.itemsize
    ids_bytes = 4 * named.num_tokens
    expected = {
        "states": _tensor(_TAGS[named.dtype], list(named.shape), 0, states_bytes),
        "token_ids": _tensor("I32", [named.num_tokens], states_bytes, states_bytes + ids_bytes),
    }
    try:
        header = json.loads(stream.read(length))
        metadata = header.pop("__metadata__")
        facts = json.loads(metadata["facts"])
        found = (metadata["schema"], metadata["token"], facts["digest"], facts["planes"], facts["start"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _other(f"{named.path}: its header is not one of a file of states") from None
    if found != (FILE_SCHEMA, token, named.digest, named.planes, start) or header != expected:
        raise _other(f"{named.path}: its header describes other states")
    if named.offset != base or named.nbytes != base + states_bytes + ids_bytes or not states_bytes:
        raise _other(f"{named.path}: {named.nbytes} bytes and offset {named.offset} are not those of its header")
    stream.seek(base + states_bytes)
    token_ids = np.frombuffer(stream.read(ids_bytes), "<i4").copy()
    if len(token_ids) != named.num_tokens:
        raise _other(f"{named.path} has become shorter")
    try:
        memory = mmap.mmap(stream.fileno(), named.nbytes, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # no address space, or a file that has become shorter
        raise UnreachableError(f"{named.path} cannot be mapped: {error}; read the handle over HTTP") from None
    with contextlib.suppress(OSError, ValueError):  # an older kernel: pages come one by one then
        memory.madvise(_MADV_POPULATE_READ)
    states = np.frombuffer(memory, dtype, states_bytes // dtype.itemsize, base).reshape(named.shape)
    return MappedStates(states=states, token_ids=token_ids)


def _tensor(tag: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": tag, "shape": shape, "data_offsets": [start, stop]}


def _other(what: str) -> WireError:
    return WireError(f"{what}; read the handle over HTTP", ErrorCode.LABEL_MISMATCH)
