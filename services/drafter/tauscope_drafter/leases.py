"""A request's hold on a loaded drafter: it lasts whatever happens to the drafter's name."""

from collections.abc import Sequence
from dataclasses import dataclass

from tauscope_drafter.context_cache import CachedContext, ContextCache
from tauscope_drafter.loading import Loaded
from tauscope_wire.messages import DrafterCard


@dataclass(eq=False)
class Entry:
    """A loaded drafter with its card, and the cache that may hold contexts of it.

    Attributes:
        loaded: the drafter.
        card: as the wire describes it.
        cache: of all drafters.
        is_unloaded: its name is gone; contexts of it are not kept any more, they would keep it in memory.
    """

    loaded: Loaded
    card: DrafterCard
    cache: ContextCache
    is_unloaded: bool = False

    @property
    def memory_bytes(self) -> int:
        """What the registry counts."""
        return self.loaded.memory_bytes


@dataclass(eq=False)
class EngineLease:
    """One request's hold on a drafter, and on a fused context if there was one."""

    entry: Entry
    pinned: CachedContext | None = None

    @property
    def card(self) -> DrafterCard:
        """Description of the drafter."""
        return self.entry.card

    def has_context(self, key: str, token_ids: Sequence[int], num_rows: int) -> bool:
        """Whether the context is at hand; keeps it until the lease is dropped. See `contract.Lease.has_context`."""
        found = self.entry.cache.get(self.entry, key, num_rows)
        if found is not None and not found.is_of(token_ids, num_rows):
            found = None
        self.pinned = found
        return found is not None
