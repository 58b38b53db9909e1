"""Where the two services are, and how to open clients to them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tauscope_client.drafter import DrafterClient
from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection
from tauscope_wire.tracing import active_tracing

__all__ = ["DEFAULT_DRAFTER_URL", "DEFAULT_TARGET_URL", "TUNNEL", "Addresses"]

DEFAULT_TARGET_URL = "http://127.0.0.1:30010"
DEFAULT_DRAFTER_URL = "http://127.0.0.1:30020"

TUNNEL = "ssh -N -L 30010:127.0.0.1:30010 -L 30020:127.0.0.1:30020 user@box"
"""The one line that brings services on loopback of another machine to the default addresses here."""


@dataclass(frozen=True, repr=False)
class Addresses:
    """Addresses of both services and the key for them."""

    target_url: str
    drafter_url: str
    key: str | None

    @contextmanager
    def open_target(self) -> Iterator[TargetClient]:
        """A client of the target service."""
        with self._connect(self.target_url) as connection:
            yield TargetClient(connection)

    @contextmanager
    def open_both(self) -> Iterator[tuple[TargetClient, DrafterClient]]:
        """Clients of both services."""
        with ExitStack() as stack:
            target = stack.enter_context(self._connect(self.target_url))
            drafter = stack.enter_context(self._connect(self.drafter_url))
            yield TargetClient(target), DrafterClient(drafter)

    def _connect(self, url: str) -> Connection:
        return Connection(url, key=self.key, tracing=active_tracing())
