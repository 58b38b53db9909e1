"""Client of the drafter service: one method an endpoint."""

from functools import partial
from threading import Lock

from tauscope_client.target import check_service
from tauscope_wire.connection import Connection
from tauscope_wire.errors import ErrorCode, NotFoundError
from tauscope_wire.expectations import DraftExpectation
from tauscope_wire.messages import (
    AcceptanceRequest,
    DrafterCard,
    DrafterList,
    DrafterLoadRequest,
    DrafterServiceInfo,
    DraftRequest,
)
from tauscope_wire.reader import read_acceptance, read_draft
from tauscope_wire.tensors import AcceptanceAnswer, DraftAnswer

__all__ = ["DrafterClient"]


class DrafterClient:
    """The drafter service at one address. Safe to use from several threads."""

    def __init__(self, connection: Connection) -> None:
        """Use `connection`; nothing is sent yet."""
        self._connection = connection
        self._is_checked = False
        self._lock = Lock()

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._connection.base_url

    def info(self) -> DrafterServiceInfo:
        """`GET /info`, asked anew every time: drafters come and go."""
        with self._lock:
            if not self._is_checked:
                check_service(self._connection, "drafter")
                self._is_checked = True
        return self._connection.get_json("/info", DrafterServiceInfo)

    def card(self, name: str) -> DrafterCard:
        """The loaded drafter of that name.

        Raises:
            NotFoundError: no such drafter; names those that are loaded.
        """
        cards = {card.name: card for card in self.info().drafters}
        if name not in cards:
            loaded = ", ".join(sorted(cards)) or "none"
            raise NotFoundError(f"no drafter {name!r} at {self.url}; loaded are: {loaded}", ErrorCode.DRAFTER_UNKNOWN)
        return cards[name]

    def draft(self, request: DraftRequest) -> DraftAnswer:
        """`POST /draft_block`.

        Raises:
            GoneError: the hidden states of the handle are gone: compute them again.
            MismatchError: drafter and target do not fit.
        """
        read = partial(read_draft, expect=DraftExpectation.of_request(request))
        return self._connection.post_tensors("/draft_block", request, read, headers=_hint(request.drafter))

    def expected_acceptance(self, request: AcceptanceRequest) -> AcceptanceAnswer:
        """`POST /expected_acceptance`; errors as `draft`."""
        read = partial(read_acceptance, expect=DraftExpectation.of_acceptance(request))
        return self._connection.post_tensors("/expected_acceptance", request, read, headers=_hint(request.drafter))

    def load(self, request: DrafterLoadRequest) -> DrafterCard:
        """`POST /drafters`."""
        return self._connection.post_json("/drafters", request, DrafterCard)

    def unload(self, name: str) -> DrafterList:
        """`DELETE /drafters/{name}`; the drafters that are left."""
        self._connection.delete(f"/drafters/{name}")
        return self._connection.get_json("/drafters", DrafterList)


def _hint(drafter: str) -> dict[str, str]:
    """Tells a router over several services which drafter is asked for, so that it need not read the body."""
    return {"X-Tauscope-Drafter": drafter} if drafter.isascii() and drafter.isprintable() else {}
