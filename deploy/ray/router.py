"""Ray Serve's seat for `routing`: runs in every proxy and in every process that holds a handle of a deployment."""

import pickle
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from routing import SMALLEST_TOKENS, Asked, Dispatcher, asked_by


class TokenRouter(RequestRouter):
    """Sends a request where the fewest tokens are in work, and prefers replicas that hold its drafter."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called once by Ray."""
        self._dispatcher: Dispatcher[ReplicaID] = Dispatcher()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of one replica each: when the first is full, Ray tries the next."""
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        reports = {name: replica.routing_stats or {} for name, replica in by_id.items()}
        asked = _asked(pending_request)
        order = self._dispatcher.rank(reports, asked)
        if pending_request is not None and order:
            request_id = pending_request.metadata.internal_request_id
            self._dispatcher.place(request_id, order[0], asked, is_sent=False)
        return [[by_id[name]] for name in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """The replica took it."""
        request_id = pending_request.metadata.internal_request_id
        self._dispatcher.place(request_id, replica_id, _asked(pending_request), is_sent=True)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It is over."""
        self._dispatcher.end(internal_request_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Nothing is in work there any more."""
        super().on_replica_actor_died(replica_id)
        self._dispatcher.forget(replica_id)


def _asked(pending: PendingRequest | None) -> Asked:
    """What the headers of an HTTP request tell. Ray's proxy has pickled its own object around them."""
    if pending is None or not pending.args:
        return Asked(SMALLEST_TOKENS)
    request = pending.args[0]
    if isinstance(request, bytes):
        request = pickle.loads(request)
    scope = getattr(request, "asgi_scope", None)
    return Asked(SMALLEST_TOKENS) if scope is None else asked_by(scope["headers"])
