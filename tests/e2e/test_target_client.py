"""The client's view of a target service, against the real one."""

from typing import Any

from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection


def test_pieces_of_more_ids_than_a_request_may_have_come_in_several_requests(services: Any) -> None:
    with Connection(services.target) as connection:
        target = TargetClient(connection)
        bound = target.info().limits.max_tokens
        ids = [token % 4096 for token in range(bound + 7)]
        pieces = target.pieces(ids)
        assert len(pieces) == bound + 7
        assert pieces[-7:] == target.detokenize(ids[-7:]).pieces
