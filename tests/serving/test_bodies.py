"""Request bodies over real HTTP: two encodings, one meaning; hostile ones end in one clear error."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.echo import Echo
from kit.serve import running
from tauscope_serving.bodies import BodyBudget, read_bytes
from tauscope_wire.errors import DeadlineError, UnavailableError

MSGPACK = {"Content-Type": "application/msgpack"}


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def client(echo: Echo) -> Iterator[httpx.Client]:
    with running(echo.app) as url, httpx.Client(base_url=url) as http:
        yield http


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.integers(-(2**31), 2**31), max_size=20),
    scale=st.floats(-1e6, 1e6, allow_nan=False).map(float),
    text=st.text(st.characters(codec="utf-8"), max_size=20),
)
def test_json_and_msgpack_of_the_same_fields_give_the_same_answer(
    client: httpx.Client, ids: list[int], scale: float, text: str
) -> None:
    body = {"token_ids": ids, "scale": scale, "text": text}
    by_json = client.post("/sum", json=body)
    by_msgpack = client.post("/sum", content=msgpack.packb(body), headers=MSGPACK)
    assert by_json.status_code == 200
    assert by_json.json() == by_msgpack.json()


@pytest.mark.parametrize(
    "media_type", ["application/msgpack; charset=x", "Application/MsgPack", "application/x-msgpack"]
)
def test_spellings_of_the_msgpack_type_are_understood(client: httpx.Client, media_type: str) -> None:
    answer = client.post("/sum", content=msgpack.packb({"token_ids": [4]}), headers={"Content-Type": media_type})
    assert answer.json()["total"] == 4


def test_a_body_that_declares_too_much_is_refused_before_it_is_read(client: httpx.Client, echo: Echo) -> None:
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection((host, port), timeout=30) as raw:
        raw.sendall(b"POST /sum HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        answer = raw.recv(65536)
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"body_too_large" in answer + b""
    assert b"65536" in answer


def test_a_body_without_a_length_is_refused_at_the_first_byte_over_the_limit(client: httpx.Client, echo: Echo) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(echo.max_body_bytes // 1024 + 1):
            sent += 1024
            yield b" " * 1024

    answer = client.post("/sum", content=endless())
    assert code_of(answer) == (413, "body_too_large")
    assert answer.json()["error"]["details"] == {"limit": "max_body_bytes", "value": sent, "bound": 65536}


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "²", "9" * 5000, ""])
def test_a_content_length_that_is_no_number_never_reaches_a_route(client: httpx.Client, length: str) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=30) as raw:
        raw.sendall(b"POST /sum HTTP/1.1\r\nHost: x\r\nContent-Length: " + length.encode("latin-1") + b"\r\n\r\n{}")
        status = raw.recv(65536).split(b"\r\n")[0]
    assert status.split()[1] in (b"400", b"413", b"422")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[1]",
        b'"text"',
        b"{",
        b'{"token_ids": [1,]}',
        b'{"token_ids": [1], "scale": NaN}',
        b'{"token_ids": [1], "scale": -Infinity}',
        b"\xff\xfe\x00",
        b"[" * 60000,
        b'{"a":' * 10000,
        b'{"token_ids": [' + b"9" * 5000 + b"]}",
        b'{"token_ids": [1], "token_ids": [2]}',
        b'{"token_ids": [1], "template_kwargs": {"a": 1, "a": 2}}',
    ],
)
def test_what_is_not_a_json_map_is_a_malformed_body(client: httpx.Client, body: bytes) -> None:
    assert code_of(client.post("/sum", content=body)) == (400, "malformed_body")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\x81",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 60000,
        b"\x81\xa1a" * 10000 + b"\xc0",
        b"\x81\x01\x02",
        b"\x81\xa1\xff\x02",
        msgpack.packb({"token_ids": [1]}) + b"\x00",
        b"\x82\xa9token_ids\x91\x01\xa9token_ids\x91\x02",
        msgpack.packb({"token_ids": [1], "text": "x"}).replace(b"\xa1x", b"\xa1\xff"),
    ],
)
def test_what_is_not_a_msgpack_map_is_a_malformed_body(client: httpx.Client, body: bytes) -> None:
    assert code_of(client.post("/sum", content=body, headers=MSGPACK)) == (400, "malformed_body")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=300), as_msgpack=st.booleans())
def test_any_bytes_get_an_answer_and_never_a_defect(client: httpx.Client, body: bytes, as_msgpack: bool) -> None:
    answer = client.post("/sum", content=body, headers=MSGPACK if as_msgpack else {})
    assert answer.status_code in (200, 400, 422)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"token_ids": "1,2"}, "token_ids"),
        ({"token_ids": [1.5]}, "token_ids.0"),
        ({"token_ids": [1, True, {}]}, "token_ids.2"),
        ({"token_ids": [1], "scale": "wide"}, "scale"),
        ({"token_ids": [1], "scael": 2}, "scael"),
        ({"scale": 2}, "token_ids"),
        ({"token_ids": [1], "text": "pharaoh" * 50}, "text"),
        ({"token_ids": [1], "text": 5}, "text"),
        ({"token_ids": [1], "k" * 5000: 5}, "k" * 200),
    ],
)
def test_a_wrong_field_is_named_and_its_value_is_not_repeated(
    client: httpx.Client, fields: dict[str, Any], field: str
) -> None:
    for answer in (
        client.post("/sum", json=fields),
        client.post("/sum", content=msgpack.packb(fields), headers=MSGPACK),
    ):
        assert code_of(answer) == (422, "invalid_request")
        assert answer.json()["error"]["details"]["field"] == field
        assert answer.json()["error"]["message"].startswith(f"{field}: ")
        assert "pharaoh" not in answer.text


def test_half_a_character_is_refused_at_the_edge(client: httpx.Client) -> None:
    answer = client.post("/sum", content=b'{"token_ids": [1], "text": "\\ud800"}')
    assert code_of(answer) == (422, "invalid_request")


def test_a_compressed_body_is_refused_not_guessed(client: httpx.Client) -> None:
    answer = client.post("/sum", content=b"\x1f\x8b\x08", headers={"Content-Encoding": "gzip"})
    assert code_of(answer) == (400, "malformed_body")


def request_of(events: list[dict[str, Any]], wait_after: bool) -> Any:
    """A request whose body arrives as `events`, then never ends (`wait_after`) or disconnects."""
    from fastapi import Request

    queue = list(events)

    async def receive() -> dict[str, Any]:
        if queue:
            return queue.pop(0)
        if wait_after:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": [], "method": "POST", "path": "/"}, receive)


def test_a_body_that_stalls_ends_in_a_deadline() -> None:
    piece = {"type": "http.request", "body": b"{", "more_body": True}
    with pytest.raises(DeadlineError, match="only 1 bytes of the body"):
        asyncio.run(read_bytes(request_of([piece], wait_after=True), max_bytes=100, grace_s=0.0))


def test_a_caller_that_leaves_in_the_middle_of_its_body_is_no_defect() -> None:
    piece = {"type": "http.request", "body": b"{", "more_body": True}
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(read_bytes(request_of([piece], wait_after=False), max_bytes=100))
    assert caught.value.code == "cancelled"


def test_the_example_of_the_largest_body_fits(client: httpx.Client, echo: Echo) -> None:
    body = json.dumps({"token_ids": [1]}).encode()
    padded = body[:-1] + b" " * (echo.max_body_bytes - len(body)) + b"}"
    assert client.post("/sum", content=padded).json()["total"] == 1
    assert code_of(client.post("/sum", content=padded + b" "))[0] == 413


def test_bodies_of_all_callers_together_are_bounded_and_one_alone_passes(echo: Echo, client: httpx.Client) -> None:
    budget = echo.app.state.bodies = BodyBudget(1000)
    large = {"token_ids": [1], "template_kwargs": {"x": "y" * 5000}}
    assert client.post("/sum", json=large).json()["total"] == 1  # alone, though larger than the budget
    assert budget.held_bytes == 0
    budget.take(900, of=0)  # somebody else's
    answer = client.post("/sum", json=large)
    assert code_of(answer) == (503, "queue_full")
    assert answer.json()["error"]["details"]["limit"] == "in_flight_body_bytes"
    assert client.post("/sum", json={"token_ids": [2]}).json()["total"] == 2  # small ones still fit
    assert client.post("/sum", content=b"{").status_code == 400
    assert client.post("/sum", content=b" " * (echo.max_body_bytes + 1)).status_code == 413
    assert budget.held_bytes == 900
    budget.give_back(900)


def test_a_body_that_did_not_come_whole_gives_its_room_back() -> None:
    budget = BodyBudget(1000)
    piece = {"type": "http.request", "body": b"x" * 100, "more_body": True}
    for wait_after in (True, False):
        with pytest.raises((DeadlineError, UnavailableError)):
            asyncio.run(read_bytes(request_of([piece], wait_after), max_bytes=500, grace_s=0.0, budget=budget))
        assert budget.held_bytes == 0


@pytest.mark.parametrize(
    ("name", "shown"), [("\n", "\\n"), ("a\r\nlevel: error", "a\\r\\nlevel: error"), ("\u2028", "\\u2028"), ("é", "é")]
)
def test_an_unknown_field_is_named_in_one_line_whatever_its_name(client: httpx.Client, name: str, shown: str) -> None:
    answer = client.post("/sum", json={"token_ids": [1], name: 1})
    assert code_of(answer) == (422, "invalid_request")
    error = answer.json()["error"]
    assert error["message"].startswith(f"{shown}: ")
    assert error["details"]["field"] == shown


def test_a_name_that_is_half_a_character_is_answered_and_not_a_defect(client: httpx.Client) -> None:
    answer = client.post("/sum", content=b'{"token_ids": [1], "\\ud800": 1}')
    assert code_of(answer) == (422, "invalid_request")
    assert "\n" not in answer.json()["error"]["message"]
