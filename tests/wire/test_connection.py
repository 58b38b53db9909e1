"""A service as a client sees it: answers, its errors, and everything that is no service."""

import functools
import json
import threading
import traceback
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import msgpack
import numpy as np
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from kit.serve import running
from tauscope_serving.answers import TensorResponse
from tauscope_serving.errors import STATUS, error_response
from tauscope_wire import errors
from tauscope_wire.connection import Connection
from tauscope_wire.errors import ErrorCode, RequestError, RetryableError, TauscopeError, UnreachableError, WireError
from tauscope_wire.expectations import HiddenExpectation
from tauscope_wire.failures import error_of
from tauscope_wire.messages import (
    DetokenizeAnswer,
    DetokenizeRequest,
    DraftRequest,
    Health,
    HiddenByHandle,
    HiddenInline,
    HiddenRequest,
    Message,
    TokenizeRequest,
)
from tauscope_wire.messages import Request as WireRequest
from tauscope_wire.reader import read_draft, read_hidden
from tauscope_wire.request_body import encode
from tauscope_wire.transport import FastTransport
from tauscope_wire.writer import chunks_of, hidden_body
from vectors.wire import make
from wire.raw_server import Caller, Script, answer, every, scripted

KEY = "k3y-that-must-not-leak"
JSON = "Content-Type: application/json"
MSGPACK = "Content-Type: application/msgpack"
OK = answer(b'{"status": "ok"}', JSON)
HIDDEN = HiddenRequest(token_ids=make.TOKEN_IDS, layers=[1, 3], positions=(1, 6))


def connect(url: str, **options: object) -> Connection:
    return Connection(url, key=KEY, new_request_id=lambda: "r-77", **options)


def text_of(error: BaseException, connection: Connection) -> str:
    """Everything of an error that may end up in a log."""
    parts = ["".join(traceback.format_exception(error)), repr(error), str(error), repr(connection)]
    return "\n".join([*parts, json.dumps(getattr(error, "details", {}), default=str)])


def test_requests_carry_key_request_id_and_their_encoding() -> None:
    with scripted(every(OK)) as server, connect(server.url) as connection:
        assert connection.get_json("/healthz", Health, params={"a": "b c"}) == Health(status="ok")
        connection.post_json("/tokenize", TokenizeRequest(text="x"), Health)
    first, second = (request.decode().split("\r\n") for request in server.requests)
    assert first[0] == "GET /healthz?a=b+c HTTP/1.1"
    assert second[0] == "POST /tokenize HTTP/1.1"
    for head in (first, second):
        assert f"Authorization: Bearer {KEY}" in head
        assert "X-Request-Id: r-77" in head
        assert "Accept-Encoding: identity" in head
    assert "Content-Type: application/json" in second


def test_a_service_older_than_an_optional_field_takes_requests_that_do_not_use_it() -> None:
    class OldRequest(BaseModel):
        """`POST /draft_block` as it was before `conditions` and `deadline_s`."""

        model_config = ConfigDict(extra="forbid")

        drafter: str
        hidden: dict[str, Any]
        token_ids: list[int]
        response_start: int
        anchors: Any
        top_k: int
        labels: bool

    app = FastAPI()

    @app.post("/draft_block")
    async def draft_block(request: Request) -> Response:
        body = await request.body()
        is_packed = request.headers["content-type"] == "application/msgpack"
        try:
            OldRequest.model_validate(msgpack.unpackb(body) if is_packed else json.loads(body))
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            return error_response(RequestError(f"unknown field {where}"), request_id="r")
        return JSONResponse({"status": "ok"})

    sequence = {"drafter": "d", "token_ids": [1, 2], "response_start": 1}
    with running(app) as url, connect(url) as connection:
        for hidden in (HiddenByHandle(handle="h"), HiddenInline(inline=b"\0" * 8, dtype="float32")):
            unset = DraftRequest(hidden=hidden, **sequence)
            explicit = DraftRequest(hidden=hidden, conditions=None, deadline_s=None, **sequence)
            for request in (unset, explicit):
                assert connection.post_json("/draft_block", request, Health).status == "ok"
            with pytest.raises(RequestError, match="unknown field deadline_s"):
                connection.post_json("/draft_block", DraftRequest(hidden=hidden, deadline_s=5.0, **sequence), Health)


def test_leaving_none_out_changes_no_request() -> None:
    def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for model in base.__subclasses__():
            yield model
            yield from models(model)

    found = list(models(WireRequest))
    assert HiddenRequest in found and DraftRequest in found
    for model in found:
        for name, field in model.model_fields.items():
            takes_none = type(None) in get_args(field.annotation) or field.annotation is Any
            assert not takes_none or field.default is None, f"{model.__name__}.{name}: None is not its default"


def test_nulls_inside_of_template_kwargs_are_kept() -> None:
    kwargs = {"tools": None, "n": [None]}
    request = TokenizeRequest(messages=[Message(role="user", content="x")], template_kwargs=kwargs)
    sent = json.loads(b"".join(encode(request)))
    assert sent["template_kwargs"] == kwargs
    assert "text" not in sent and "token_ids" not in sent
    assert TokenizeRequest.model_validate(sent) == request


def test_a_request_with_bytes_travels_as_msgpack_and_one_without_as_json() -> None:
    states = make.states(2, 6, np.float32).tobytes() * 1000
    inline = DraftRequest(
        drafter="d", hidden=HiddenInline(inline=states, dtype="float32"), token_ids=[1, 2], response_start=1
    )
    by_handle = DraftRequest(drafter="d", hidden=HiddenByHandle(handle="h"), token_ids=[1, 2], response_start=1)
    app, bodies = FastAPI(), []

    @app.post("/draft_block")
    async def draft_block(request: Request) -> dict[str, str]:
        bodies.append((request.headers["content-type"], await request.body()))
        return {"status": "ok"}

    with running(app) as url, connect(url) as connection:
        for request in (inline, by_handle):
            connection.post_json("/draft_block", request, Health)
    (first_type, first), (second_type, second) = bodies
    assert (first_type, second_type) == ("application/msgpack", "application/json")
    assert DraftRequest.model_validate(msgpack.unpackb(first)) == inline
    assert DraftRequest.model_validate_json(second) == by_handle


def test_the_alias_of_a_field_is_what_travels() -> None:
    def script(caller: Caller, index: int) -> None:
        head = caller.head().decode()
        length = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
        bodies.append(json.loads(caller.body(length)))
        caller.send(OK)

    bodies: list[dict[str, object]] = []
    with scripted(script) as server, connect(server.url) as connection:
        connection.post_json("/hidden_states", HIDDEN.model_copy(update={"return_": "both"}), Health)
    assert bodies[0]["return"] == "both"
    assert HiddenRequest.model_validate(bodies[0]).return_ == "both"


def big_app() -> tuple[FastAPI, np.ndarray]:
    states = (np.arange(3 * 700 * 512) % 251).astype(np.float32).reshape(3, 700, 512)
    app = FastAPI()

    @app.post("/hidden_states")
    @app.get("/hidden_states/{handle}")
    async def hidden_states() -> TensorResponse:
        body = hidden_body(
            request_id="r",
            model=make.MODEL.model_copy(update={"hidden_size": 512, "vocab_size": 1000}),
            numerics=make.NUMERICS,
            requested={"convention": "output", "layers": [1, 3, 5]},
            planes=[1, 3, 5],
            dtype="float32",
            token_ids=range(700),
            positions=(0, 700),
            shape=states.shape,
            handle=None,
            chunks=iter(chunks_of(states, 0, max_rows=300)),
            geometry=[(0, 300), (300, 600), (600, 700)],
            digest=None,
            logits=None,
            timing_ms={},
        )
        return TensorResponse(body, "r")

    return app, states


def test_tensors_of_a_real_service_arrive_whole_over_any_transport() -> None:
    app, states = big_app()
    request = HiddenRequest(token_ids=list(range(700)), layers=[1, 3, 5], dtype="float32")
    read = functools.partial(read_hidden, expect=HiddenExpectation.of_request(request))
    with running(app) as url:
        for transport in (None, httpx.HTTPTransport()):
            with connect(url, transport=transport) as connection:
                posted = connection.post_tensors("/hidden_states", request, read)
                fetched = connection.get_tensors("/hidden_states/h", {"planes": "1,3,5"}, read_hidden)
            for found in (posted, fetched):
                assert found.states is not None
                np.testing.assert_array_equal(found.states, states)


def all_errors() -> list[TauscopeError]:
    kinds = [kind for kind in STATUS if kind is not errors.RequestError]
    plain = [kind("what, value, bound", details={"limit": "x", "value": 3}) for kind in kinds]
    coded = [
        errors.RequestError("layers[0]=70", ErrorCode.LAYER_OUT_OF_RANGE),
        errors.RequestError("no", ErrorCode.INVALID_REQUEST),
        errors.CheckpointError("x.pt", ErrorCode.CHECKPOINT_UNSAFE),
        errors.QuotaError("tokens", retry_after_s=17.0),
        errors.UnavailableError("full", ErrorCode.QUEUE_FULL, retry_after_s=3.0),
        errors.TooLargeError("long", ErrorCode.PROMPT_TOO_LONG),
        errors.NotFoundError("route", ErrorCode.ROUTE_UNKNOWN),
        errors.InternalError("nan", ErrorCode.NON_FINITE_STATES),
        errors.WireError("upstream", ErrorCode.CHECKSUM_MISMATCH),
        errors.UnreachableError("upstream", ErrorCode.TIMED_OUT),
    ]
    return [*plain, *coded]


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: f"{type(error).__name__}-{error.code}")
def test_every_error_of_a_service_comes_out_as_itself(error: TauscopeError) -> None:
    sent = error_response(error, "r-5")
    received = httpx.Response(sent.status_code, headers=sent.headers, content=sent.body)
    found = error_of(received, bytes(sent.body), "GET http://x/")
    assert type(found) is type(error)
    assert (found.code, found.message) == (error.code, error.message)
    assert found.details == {**error.details, "status": sent.status_code, "request_id": "r-5"}
    if isinstance(error, RetryableError):
        assert isinstance(found, RetryableError)
        assert found.retry_after_s == error.retry_after_s


def error_body(code: str, status: str) -> bytes:
    return answer(json.dumps({"error": {"code": code, "message": "m"}}).encode(), JSON, status=status)


def test_a_code_of_a_newer_service_falls_back_to_its_status_and_stays_readable() -> None:
    script = every(error_body("gone_fishing", "410 Gone"))
    with scripted(script) as server, connect(server.url) as connection, pytest.raises(errors.GoneError) as caught:
        connection.get_json("/hidden_states/h", Health)
    assert caught.value.code == ErrorCode.HANDLE_GONE
    assert caught.value.details == {"code": "gone_fishing", "status": 410}


def test_head_knows_an_error_by_its_status_alone() -> None:
    gone = b"HTTP/1.1 410 Gone\r\nContent-Length: 99\r\n\r\n"
    found = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nX-Digest: d\r\n\r\n"
    with scripted(every(gone, found)) as server, connect(server.url) as connection:
        with pytest.raises(errors.GoneError, match="410 Gone"):
            connection.head("/hidden_states/h")
        assert connection.head("/hidden_states/h")["x-digest"] == "d"


def test_deleting_answers_nothing_or_the_error() -> None:
    with scripted(every(OK, error_body("handle_gone", "410 Gone"))) as server, connect(server.url) as connection:
        connection.delete("/hidden_states/h")
        with pytest.raises(errors.GoneError):
            connection.delete("/hidden_states/h")
    assert server.num_connections == 1


FOREIGN = {
    "html of a proxy": answer(b"<html>502</html>", "Content-Type: text/html", status="502 Bad Gateway"),
    "another API": answer(b'{"detail": "Not Found"}', JSON, status="404 Not Found"),
    "an error of another shape": answer(b'{"error": "no"}', JSON, status="500 Internal Server Error"),
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: https://login/\r\nContent-Length: 0\r\n\r\n",
    "html and 200": answer(b"<html></html>", "Content-Type: text/html; charset=utf-8"),
    "JSON of another shape": answer(b'{"models": []}', JSON),
    "no JSON": answer(b"{", JSON),
    "no content type": answer(b"ok"),
    "a status that none of ours has": answer(b"", status="418 I'm a teapot"),
    "not HTTP": b"220 mail ESMTP\r\n",
    "compressed": answer(b"??", MSGPACK, "Content-Encoding: gzip"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_an_answer_that_is_not_ours_says_which_port_to_check(name: str) -> None:
    with scripted(every(FOREIGN[name])) as server, connect(server.url) as connection:
        for call in (
            lambda: connection.get_json("/info", Health),
            lambda: connection.post_tensors("/hidden_states", HIDDEN, read_hidden),
        ):
            with pytest.raises(UnreachableError, match="30010 is the target service") as caught:
                call()
            assert caught.value.code == ErrorCode.UNEXPECTED_ANSWER
            assert server.url in caught.value.message
            assert KEY not in text_of(caught.value, connection)


def test_a_service_that_does_not_run_is_unreachable_and_the_message_says_what_to_check() -> None:
    with scripted(every()) as server:
        pass
    with connect(server.url) as connection, pytest.raises(UnreachableError) as caught:
        connection.get_json("/info", Health)
    port = server.url.rpartition(":")[2]
    assert caught.value.code == ErrorCode.UNREACHABLE
    assert f"GET {server.url}/info: Connection refused" in caught.value.message
    assert f"ssh -N -L {port}:127.0.0.1:{port}" in caught.value.message
    assert KEY not in text_of(caught.value, connection)


def test_a_service_that_is_silent_times_out() -> None:
    done = threading.Event()

    def script(caller: Caller, index: int) -> None:
        caller.head()
        done.wait(30)

    try:
        refused = pytest.raises(UnreachableError, match=r"timed out while reading; .*/healthz")
        with scripted(script) as server, connect(server.url, timeout_s=0.05) as connection, refused as caught:
            connection.get_json("/info", Health)
    finally:
        done.set()
    assert caught.value.code == ErrorCode.TIMED_OUT


class Recorder(FastTransport):
    """Keeps the timeouts that requests came with."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[dict[str, float]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.timeouts.append(request.extensions["timeout"])
        return super().handle_request(request)


def test_a_deadline_longer_than_the_timeout_is_waited_for() -> None:
    """The service's own 504 must have the time to arrive."""
    recorder = Recorder()
    with scripted(every(OK)) as server, connect(server.url, transport=recorder, timeout_s=30.0) as connection:
        for deadline_s in (None, 5.0, 100.0):
            connection.post_json("/x", HIDDEN.model_copy(update={"deadline_s": deadline_s}), Health)
        connection.post_json("/x", HIDDEN.model_copy(update={"deadline_s": 100.0}), Health, timeout_s=7.0)
    assert [timeouts["read"] for timeouts in recorder.timeouts] == [30.0, 30.0, 110.0, 7.0]
    assert {timeouts["connect"] for timeouts in recorder.timeouts} == {10.0}


def broken(start: bytes, *, reset: bool) -> Script:
    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(start)
        if reset:
            caller.reset()

    return script


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("framing", ["Content-Length: 3000", "Connection: close", "Transfer-Encoding: chunked"])
def test_a_tensor_body_that_is_cut_is_truncated_whatever_cut_it(framing: str, reset: bool) -> None:
    part = make.hidden_bf16()[:700]
    if "chunked" in framing:
        part = b"%x\r\n" % 3000 + part
    start = f"HTTP/1.1 200 OK\r\n{MSGPACK}\r\n{framing}\r\n\r\n".encode() + part
    with scripted(broken(start, reset=reset)) as server:
        for transport in (None, httpx.HTTPTransport()):
            refused = pytest.raises((WireError, UnreachableError))
            with connect(server.url, transport=transport) as connection, refused as caught:
                connection.post_tensors("/hidden_states", HIDDEN, read_hidden)
            if isinstance(caught.value, UnreachableError):
                # a reset may overtake the head of the answer on its way through the kernel
                assert reset
            else:
                assert caught.value.code == ErrorCode.BODY_TRUNCATED


def test_a_json_answer_that_is_cut_is_no_answer() -> None:
    start = f"HTTP/1.1 200 OK\r\n{JSON}\r\nContent-Length: 30\r\n\r\n".encode() + b'{"status": "ok"}'
    refused = pytest.raises(UnreachableError, match="ended 14 bytes before")
    with scripted(broken(start, reset=False)) as server, connect(server.url) as connection, refused:
        connection.get_json("/healthz", Health)


def test_a_refused_body_leaves_the_connection_usable() -> None:
    bad = answer((make.FOLDER / "refused/one_bit_flipped.msgpack").read_bytes(), MSGPACK)
    with scripted(every(bad, answer(make.draft(), MSGPACK))) as server, connect(server.url) as connection:
        with pytest.raises(WireError) as caught:
            connection.post_tensors("/hidden_states", HIDDEN, read_hidden)
        assert caught.value.code == ErrorCode.CHECKSUM_MISMATCH
        assert connection.get_tensors("/draft", None, read_draft).drafter == make.DRAFTER


def test_an_answer_with_other_labels_than_asked_for_is_refused_at_the_connection() -> None:
    expect = HiddenExpectation.of_request(HIDDEN.model_copy(update={"layers": [3, 1]}))
    script = every(answer(make.hidden_bf16(), MSGPACK))
    with scripted(script) as server, connect(server.url) as connection, pytest.raises(WireError) as caught:
        connection.post_tensors("/hidden_states", HIDDEN, functools.partial(read_hidden, expect=expect))
    assert caught.value.code == ErrorCode.LABEL_MISMATCH
    assert "planes: [1, 3] came, [3, 1] was asked for" in caught.value.message


@pytest.mark.parametrize("key", ["", "with blank", "line\nbreak", "ключ", "\x00"])
def test_a_key_that_cannot_be_a_header_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(RequestError, match="API key is empty or holds") as caught:
        Connection("http://127.0.0.1:1", key=key)
    assert len(key) < 2 or key not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:30010", "localhost:30010", "ftp://x", "http://", "", "http://x:port", "unix://relative"]
)
def test_an_address_that_is_not_one_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="give http://HOST:PORT"):
        Connection(url)


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(RequestError, match="user name or password") as caught:
        Connection("http://user:s3cret@127.0.0.1:1")
    assert "s3cret" not in "".join(traceback.format_exception(caught.value)).replace('"http://user:s3cret@', "")


def test_a_unix_socket_is_an_address(tmp_path: object) -> None:
    with scripted(every(OK), uds=f"{tmp_path}/s") as server, connect(server.url) as connection:
        assert connection.get_json("/healthz", Health).status == "ok"


def test_a_path_in_the_address_is_kept_before_every_path() -> None:
    with scripted(every(OK)) as server, connect(f"{server.url}/tauscope/") as connection:
        connection.get_json("/healthz", Health)
    assert server.requests[0].startswith(b"GET /tauscope/healthz ")


def test_json_answers_may_have_fields_that_are_not_known() -> None:
    body = json.dumps({"text": "a", "pieces": ["a"], "later": 1}).encode()
    with scripted(every(answer(body, JSON))) as server, connect(server.url) as connection:
        found = connection.post_json("/detokenize", DetokenizeRequest(token_ids=[1]), DetokenizeAnswer)
    assert found == DetokenizeAnswer(text="a", pieces=["a"])
