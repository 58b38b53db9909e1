"""Which replica a request goes to: where the fewest tokens are in work, and where its drafter is loaded. Needs no Ray.

A router knows what it has sent and what has not come back. Replicas report the tokens that wait there, once a second:
that is late, but counts what other routers have sent too. The larger of both is a replica's load.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

BYTES_PER_TOKEN = 4
"""Of a request: an id takes 3 bytes in msgpack and 5 or 6 in JSON, text 4. All requests are weighed alike."""
SMALLEST_TOKENS = 64
"""What a request without a body costs: reading a handle is work too."""
UNKNOWN_BYTES = 16 << 10
"""For a body that does not tell its length."""
LOADING_TOKENS = 32_768
"""Loading a drafter takes as long as drafting so many tokens: a replica that has it is preferred until it is that much
busier than one that would have to load it."""
TENTATIVE_S = 30.0
"""A request that was given a replica and never sent there (its caller left) is forgotten after that."""

BELIEF_S = 5.0
"""What this router sent tells better what is loaded than reports do, which are taken once a second and take a while."""

DRAFTER_HEADER = b"x-tauscope-drafter"

R = TypeVar("R", bound=Hashable)


@dataclass(frozen=True)
class Asked:
    """What is known of a request before its body is read."""

    tokens: int
    drafter: str | None = None


def asked_by(headers: Iterable[tuple[bytes, bytes]]) -> Asked:
    """Judge a request by its headers."""
    found = {name.lower(): value for name, value in headers}
    length = found.get(b"content-length", b"")
    nbytes = UNKNOWN_BYTES if b"transfer-encoding" in found else 0
    if length.isdigit():
        nbytes = int(length[:19])
    drafter = found.get(DRAFTER_HEADER, b"").decode("latin-1")
    return Asked(max(SMALLEST_TOKENS, nbytes // BYTES_PER_TOKEN), drafter or None)


@dataclass
class _Placed(Generic[R]):
    replica: R
    asked: Asked
    at_s: float
    is_sent: bool


class Dispatcher(Generic[R]):
    """Keeps count of one router's requests and ranks replicas for the next one.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._placed: dict[str, _Placed[R]] = {}
        self._sent: dict[R, dict[str, float]] = {}
        self._turn = 0

    def rank(self, reports: Mapping[R, Mapping[str, Any]], asked: Asked) -> list[R]:
        """All replicas, the best first.

        Args:
            reports: what each replica last said: `tokens` that wait there, `drafters` that are loaded, the last used
                last, and how many `places` it has for them.
            asked: the request.
        """
        own = dict.fromkeys(reports, 0)
        oldest_s = self._clock() - TENTATIVE_S
        for name in [name for name, one in self._placed.items() if not one.is_sent and one.at_s < oldest_s]:
            del self._placed[name]
        for one in self._placed.values():
            if one.replica in own:
                own[one.replica] += one.asked.tokens
        # Among equals they take turns.
        self._turn += 1
        turn = self._turn % max(1, len(own))
        order = [*own][turn:] + [*own][:turn]
        return sorted(order, key=lambda replica: self._cost(replica, own[replica], reports[replica], asked))

    def _cost(self, replica: R, own: int, report: Mapping[str, Any], asked: Asked) -> int:
        load = max(own, int(report.get("tokens", 0)))
        if asked.drafter is None or "drafters" not in report:
            return load
        return load if asked.drafter in self._loaded(replica, report) else load + LOADING_TOKENS

    def _loaded(self, replica: R, report: Mapping[str, Any]) -> list[str]:
        """The drafters of a replica as far as is known, the last used first."""
        oldest_s = self._clock() - BELIEF_S
        sent = self._sent.get(replica, {})
        recent = sorted((name for name, at_s in sent.items() if at_s >= oldest_s), key=lambda name: -sent[name])
        known = dict.fromkeys([*recent, *reversed(report["drafters"])])
        return list(known)[: int(report.get("places", len(known)))]

    def place(self, request_id: str, replica: R, asked: Asked, *, is_sent: bool) -> None:
        """The request goes to this replica; its drafter will be there before the replica reports it.

        Args:
            request_id: of the request.
            replica: chosen for it.
            asked: the request.
            is_sent: whether the replica has taken it.
        """
        self._placed[request_id] = _Placed(replica, asked, self._clock(), is_sent)
        if asked.drafter is not None:
            self._sent.setdefault(replica, {})[asked.drafter] = self._clock()

    def end(self, request_id: str) -> None:
        """The request is over, in whatever way."""
        self._placed.pop(request_id, None)

    def forget(self, replica: R) -> None:
        """A replica is gone."""
        self._sent.pop(replica, None)
        for name in [name for name, one in self._placed.items() if one.replica == replica]:
            del self._placed[name]
