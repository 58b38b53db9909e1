"""One entry of the handle store: states with what is needed to answer from them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_wire.checksums import digest_of
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.layers import Plane
from tauscope_wire.tensors import LogitsSummary


@dataclass(frozen=True)
class StatesFile:
    """The file that an entry's states are mapped from.

    Attributes:
        path: absolute.
        nbytes: its size.
        offset: where the states begin.
    """

    path: Path
    nbytes: int
    offset: int


@dataclass(eq=False)
class StoredStates:
    """One entry.

    Attributes:
        planes: names in the order of the data.
        dtype: element type.
        token_ids: int32 [T], the whole sequence.
        start: position of the first row.
        states: [P, n, H], never written again.
        logits: summary at the same positions, or None.
        owner: name of the key that asked.
        shared: whether other keys may read it.
        digest: xxh3_128 over the data.
        created: set by the store.
        pins: readers that hold it now.
        leased_until: a reader on this machine may still open the file, by the store's clock.
        file: where the states are mapped from, if a `StoreFolder` keeps them.
    """

    planes: tuple[Plane, ...]
    dtype: WireDtype
    token_ids: npt.NDArray[np.int32]
    start: int
    states: npt.NDArray[Any]
    logits: LogitsSummary | None
    owner: str
    shared: bool
    digest: str
    created: float = 0.0
    pins: int = field(default=0, repr=False)
    leased_until: float = field(default=0.0, repr=False)
    file: StatesFile | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes that the entry holds."""
        summary = self.logits
        arrays = [] if summary is None else [summary.argmax_ids, summary.top_ids, summary.top_logprobs]
        return int(self.states.nbytes + self.token_ids.nbytes + sum(array.nbytes for array in arrays))

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + int(self.states.shape[1])

    def is_held(self, now: float) -> bool:
        """Whether it may not be evicted at `now`, by the store's clock."""
        return self.pins > 0 or self.leased_until > now

    def is_readable_by(self, caller: str) -> bool:
        """Whether `caller`, a key's name, may read it."""
        return self.shared or caller == self.owner


def stored(
    *,
    planes: tuple[Plane, ...],
    dtype: WireDtype,
    token_ids: npt.NDArray[np.int32],
    start: int,
    states: npt.NDArray[Any],
    logits: LogitsSummary | None,
    owner: str,
    shared: bool,
) -> StoredStates:
    """An entry with its digest."""
    return StoredStates(planes, dtype, token_ids, start, states, logits, owner, shared, digest_of(states))
