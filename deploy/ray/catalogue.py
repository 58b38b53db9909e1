"""Many drafters on few places: a replica holds the ones it was asked for last, and loads another when it is asked for.

Every replica knows the whole catalogue, so that any of them can answer for any drafter; the router sends a request
where its drafter is loaded already.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.contract import DraftingEngine, Lease
from tauscope_wire.errors import ErrorCode, NotFoundError, PermissionDeniedError
from tauscope_wire.messages import DrafterCard


class Catalogue:
    """An engine whose drafters come and go by use.

    Loads every drafter once at the start: that proves all of them, and their cards are known from then on.

    Args:
        engine: loads and drafts; it belongs to the catalogue.
        drafters: path and options by name.
        max_loaded: drafters held at a time.
    """

    def __init__(
        self, engine: DraftingEngine, drafters: Mapping[str, tuple[Path, LoadOptions]], *, max_loaded: int
    ) -> None:
        self._engine = engine
        self._drafters = dict(drafters)
        self._max_loaded = max_loaded
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._cards: dict[str, DrafterCard] = {}
        self.num_loads = 0
        for name in self._drafters:
            self._cards[name] = self._load(name)

    def __getattr__(self, name: str) -> Any:
        """Drafting, numerics and counts are the engine's own."""
        return getattr(self._engine, name)

    def cards(self) -> list[DrafterCard]:
        """All of the catalogue."""
        return list(self._cards.values())

    def loaded(self) -> list[str]:
        """Those that can draft at once, the last used last."""
        with self._lock:
            return list(self._loaded)

    def report(self) -> dict[str, Any]:
        """What the router is told."""
        return {"drafters": self.loaded(), "places": self._max_loaded, "loads": self.num_loads}

    def lease(self, name: str) -> Lease:
        """A drafter for one request; blocks while it is loaded, so call it off the event loop.

        Raises:
            NotFoundError: not in the catalogue.
        """
        if name not in self._drafters:
            names = ", ".join(self._drafters) or "none"
            raise NotFoundError(f"drafter {name!r} is not here; there are: {names}", ErrorCode.DRAFTER_UNKNOWN)
        found = self._take(name)
        while found is None:
            with self._loading:  # one at a time: loading is bound by disk and memory
                found = self._take(name)
                if found is None:
                    self._load(name)
                    found = self._take(name)
        return found

    def load(self, name: str, *args: Any, **kwargs: Any) -> DrafterCard:
        """Refuse: replicas must all have the same catalogue."""
        raise PermissionDeniedError(
            f"drafter {name!r}: a replica takes no drafters at run time; name it in the application's configuration",
            ErrorCode.PATH_OUTSIDE_ROOTS,
        )

    def unload(self, name: str) -> None:
        """Refuse, as `load`."""
        raise PermissionDeniedError(
            f"drafter {name!r}: a replica gives no drafter away; take it out of the application's configuration",
            ErrorCode.PATH_OUTSIDE_ROOTS,
        )

    def _take(self, name: str) -> Lease | None:
        with self._lock:
            if name not in self._loaded:
                return None
            self._loaded.move_to_end(name)
            return self._engine.lease(name)

    def _load(self, name: str) -> DrafterCard:
        while len(self._loaded) >= self._max_loaded:
            with self._lock:
                oldest, _ = self._loaded.popitem(last=False)
            self._engine.unload(oldest)  # requests in flight finish
        path, options = self._drafters[name]
        card = self._engine.load(name, path, options, roots=None)
        with self._lock:
            self._loaded[name] = None
        self.num_loads += 1
        return card
