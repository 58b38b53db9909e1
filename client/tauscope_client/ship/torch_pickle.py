"""The pickle inside of a `.pt` file, read without running anything and written again with less in it.

Every class and function that the pickle names becomes an inert stand-in that only remembers its arguments. Written are
plain values, containers, and calls of `torch._utils._rebuild_*`, which is what `torch.load(weights_only=True)` accepts.
"""

import io
import pickle
import pickletools
import re
import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tauscope_wire.errors import CheckpointError, ErrorCode

__all__ = ["Inert", "Storage", "dump", "is_plain", "is_tensor", "load", "storages_of"]

MAX_DEPTH = 64
"""Deeper containers are no checkpoint."""


_NAME = re.compile(r"[A-Za-z0-9_.]+")


class Inert:
    """Stands for an object that the pickle would build; subclasses stand for the classes and functions it names."""

    module = ""
    qualname = ""

    def __new__(cls, *args: Any, **_: Any) -> "Inert":
        """Remember the arguments; a pickle may build an object without calling `__init__`."""
        made = super().__new__(cls)
        made.args = args
        return made

    def __init__(self, *args: Any, **_: Any) -> None:
        self.args = args

    def __setstate__(self, state: object) -> None:
        """Forget what would be set."""

    def append(self, _: object) -> None:
        """Forget an item."""

    def extend(self, _: object) -> None:
        """Forget items."""

    def __setitem__(self, _: object, __: object) -> None:
        """Forget an item."""


class Storage:
    """The data of tensors: a file `data/KEY` of the archive.

    Attributes:
        pid: what the pickle says about it: `('storage', type, key, location, number of elements)`.
    """

    def __init__(self, pid: tuple[Any, ...]) -> None:
        self.pid = pid

    @property
    def key(self) -> str:
        """Name of the file below `data/`."""
        return str(self.pid[2])


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if not (_NAME.fullmatch(module) and _NAME.fullmatch(name)):
            raise pickle.UnpicklingError("not a name")  # a line break in it would become opcodes when written again
        return type("Inert", (Inert,), {"module": module, "qualname": name})

    def persistent_load(self, pid: Any) -> Storage:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            raise pickle.UnpicklingError("unknown persistent id")
        return Storage(pid)


def load(name: str, data: bytes) -> Any:
    """Read a pickle; nothing that it names is imported or called.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "LONG_BINPUT" and isinstance(argument, int) and argument > len(data):
                raise ValueError("a memo of more entries than bytes")  # it would be allocated
        return _Reader(io.BytesIO(data)).load()
    except (
        MemoryError,
        RecursionError,
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
    ):
        raise CheckpointError(f"{name}: its pickle cannot be read; ship it without --weights-only") from None


def is_tensor(value: object) -> bool:
    """Whether `value` is a call that builds a tensor or a parameter."""
    return isinstance(value, Inert) and value.module == "torch._utils" and value.qualname.startswith("_rebuild_")


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether `value` is made of numbers, text, lists, tuples and maps with plain keys only."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, list | tuple):
        return all(is_plain(item, depth + 1) for item in value)
    if isinstance(value, Mapping):
        return all(is_plain(k, depth + 1) and is_plain(v, depth + 1) for k, v in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def storages_of(value: object) -> dict[str, Storage]:
    """All storages below `value`, by key."""
    found: dict[str, Storage] = {}
    pending = [value]
    seen: set[int] = set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Storage):
            found[item.key] = item
        elif isinstance(item, Inert):
            pending += item.args
        elif isinstance(item, Mapping):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
    return found


def dump(value: object) -> bytes:
    """Write plain values, containers and tensors as a pickle of protocol 2.

    Raises:
        CheckpointError: something else is in it.
    """
    out = bytearray(b"\x80\x02")
    _write(out, value, 0)
    return bytes(out + b".")


def _write(out: bytearray, value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CheckpointError("the checkpoint's containers are nested too deeply", ErrorCode.CHECKPOINT_UNSUPPORTED)
    if value is None or isinstance(value, bool | int | float | str):
        _write_scalar(out, value)
    elif isinstance(value, tuple):
        out += b"("
        for item in value:
            _write(out, item, depth + 1)
        out += b"t"
    elif isinstance(value, list):
        out += b"]("
        for item in value:
            _write(out, item, depth + 1)
        out += b"e"
    elif isinstance(value, Mapping):
        out += b"ccollections\nOrderedDict\n)R(" if isinstance(value, OrderedDict) else b"}("
        for key, item in value.items():
            _write(out, key, depth + 1)
            _write(out, item, depth + 1)
        out += b"u"
    elif isinstance(value, Storage):
        _write(out, value.pid, depth + 1)
        out += b"Q"
    elif isinstance(value, Inert):
        _write(out, type(value), depth + 1)
        _write(out, value.args, depth + 1)
        out += b"R"
    elif isinstance(value, type) and issubclass(value, Inert):
        out += f"c{value.module}\n{value.qualname}\n".encode()
    else:
        raise CheckpointError(
            f"a {type(value).__name__} in the checkpoint cannot be shipped", ErrorCode.CHECKPOINT_UNSUPPORTED
        )


def _write_scalar(out: bytearray, value: bool | float | str | None) -> None:
    if value is None:
        out += b"N"
    elif isinstance(value, bool):
        out += b"\x88" if value else b"\x89"
    elif isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            out += b"J" + struct.pack("<i", value)
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            out += b"\x8a" + bytes([len(data)]) + data
    elif isinstance(value, float):
        out += b"G" + struct.pack(">d", value)
    else:
        text = value.encode("utf-8", "surrogatepass")
        out += b"X" + struct.pack("<I", len(text)) + text
