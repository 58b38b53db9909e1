"""What any opened checkpoint offers: names, shapes, and tensors one at a time."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor


class TensorInfo(NamedTuple):
    """What a file says about a tensor before its data are read."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class TensorFile(Protocol):
    """Tensors of one checkpoint by the names the file uses."""

    paths: tuple[Path, ...]

    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors, data unread."""
        ...

    def read(self, name: str) -> Tensor:
        """One tensor on the host; may alias a memory map, so never write to it."""
        ...
