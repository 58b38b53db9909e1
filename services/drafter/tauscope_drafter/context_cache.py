"""Fused contexts of recent sequences, within a byte budget: the same handle drafted again costs no context pass."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tauscope_drafter.contract import ContextCounts, DraftJob
from tauscope_drafter.sequence import Ids, check_sequence


@dataclass(frozen=True, slots=True)
class CachedContext:
    """One sequence fused for one drafter.

    Attributes:
        context: what the family's `fuse` gave; never changed.
        num_rows: positions 0..num_rows-1 are covered.
        nbytes: memory of the context.
        warnings: about the states it was made of.
        held_ids: [T], ids of the handle.
        read_ids: ids 0..num_rows of the request that it was fused for: families with slots also read the token after
            the last row, which the handle need not have.
    """

    context: Any
    num_rows: int
    nbytes: int
    warnings: tuple[str, ...] = ()
    held_ids: Ids | None = None
    read_ids: Ids | None = None

    def labelled(self, job: DraftJob) -> "CachedContext":
        """The context with the ids of the job that it was fused for, copied: they may lie in a mapped file."""
        held = None if job.states is None or job.states.token_ids is None else np.array(job.states.token_ids)
        return replace(self, held_ids=held, read_ids=np.array(job.token_ids[: self.num_rows + 1]))

    def is_of(self, token_ids: Sequence[int], num_rows: int) -> bool:
        """Whether the first `num_rows` positions would be fused to the same for `token_ids`.

        Raises:
            RequestError: the handle was made of another sequence.
        """
        if self.held_ids is not None:
            check_sequence(self.held_ids, token_ids, num_rows)
        if self.read_ids is None:
            return True
        return np.array_equal(self.read_ids[: num_rows + 1], np.asarray(token_ids[: num_rows + 1]))


class ContextCache:
    """Least recently used first out; safe to use from several threads.

    Args:
        budget_bytes: bound on all contexts together; 0 keeps none.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._used = 0
        self._entries: OrderedDict[tuple[object, str], CachedContext] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0

    @property
    def counts(self) -> ContextCounts:
        """How often contexts were at hand so far."""
        return ContextCounts(self._hits, self._misses, self._used)

    @property
    def used_bytes(self) -> int:
        """Memory of all contexts kept."""
        return self._used

    def get(self, owner: object, key: str, num_rows: int) -> CachedContext | None:
        """A context that covers `num_rows` positions, or None."""
        with self._lock:
            entry = self._entries.get((owner, key))
            if entry is None or entry.num_rows < num_rows:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end((owner, key))
            return entry

    def put(self, owner: object, key: str, entry: CachedContext) -> None:
        """Keep a context; one larger than the whole budget is not kept."""
        if entry.nbytes > self._budget:
            return
        with self._lock:
            self._drop((owner, key))
            self._entries[owner, key] = entry
            self._used += entry.nbytes
            while self._used > self._budget:
                self._drop(next(iter(self._entries)))

    def forget(self, owner: object) -> None:
        """Drop all contexts of one drafter."""
        with self._lock:
            for place in [p for p in self._entries if p[0] is owner]:
                self._drop(place)

    def _drop(self, place: tuple[object, str]) -> None:
        entry = self._entries.pop(place, None)
        if entry is not None:
            self._used -= entry.nbytes
