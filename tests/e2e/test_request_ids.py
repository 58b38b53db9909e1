"""One id for one request, in the logs of both services; and one line a request in each."""

import json
from pathlib import Path
from typing import Any

import httpx

from kit.engine import random_ids
from tauscope_client.drafter import DrafterClient
from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection
from tauscope_wire.messages import DraftRequest, HiddenByHandle, HiddenRequest


def lines(log: Path) -> list[dict[str, Any]]:
    """Structured lines of requests; what a service says at its start is for people."""
    found = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in found if line["logger"] == "tauscope.access"]


def test_the_id_of_a_draft_travels_from_the_client_through_the_drafter_to_the_target(services: Any) -> None:
    ids = random_ids(40, seed=3).tolist()
    with (
        Connection(services.target, new_request_id=lambda: "states-of-the-trip") as to_target,
        Connection(services.drafter, new_request_id=lambda: "draft-of-the-trip") as to_drafter,
    ):
        drafter = DrafterClient(to_drafter)
        taps = drafter.card("trained").taps
        handle = TargetClient(to_target).hidden_handle(HiddenRequest(token_ids=ids, layers=taps)).handle
        hidden = HiddenByHandle(handle=handle)
        drafter.draft(DraftRequest(drafter="trained", hidden=hidden, token_ids=ids, response_start=20))
    for url in (services.target, services.drafter):
        httpx.get(f"{url}/healthz")  # answered after the line of the request before was written
    at_target = lines(services.logs / "target.log")
    at_drafter = lines(services.logs / "drafter.log")
    (made,) = [line for line in at_target if line["request_id"] == "states-of-the-trip" and line["method"] == "POST"]
    assert (made["route"], made["status"], made["tokens"]) == ("/hidden_states", 200, 40)
    drafted = [line for line in at_drafter if line["request_id"] == "draft-of-the-trip"]
    (draft,) = [line for line in drafted if line["route"] == "/draft_block"]
    assert (draft["drafter"], draft["status"]) == ("trained", 200)
    read = [line for line in at_target if line["request_id"] == "draft-of-the-trip"]
    assert read
    assert all(line["route"].startswith("/hidden_states/{handle}") for line in read)
    assert not any(handle in line["route"] for line in at_target)
