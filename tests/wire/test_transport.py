"""The transport against real sockets: reuse, repetition, broken peers, threads, memory."""

import hashlib
import ssl
import subprocess
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tauscope_wire.pool import Address, ConnectionPool
from tauscope_wire.transport import SOURCE, FastTransport
from wire.raw_server import Caller, answer, every, scripted

MIB = 1 << 20


def client(transport: FastTransport | None = None, timeout_s: float = 30.0) -> httpx.Client:
    return httpx.Client(transport=transport or FastTransport(), timeout=timeout_s)


def test_answers_are_those_of_httpx_itself() -> None:
    body = bytes(range(256)) * 9000
    script = every(answer(body, "X-One: 1", "X-One: 2", "Content-Type: text/plain; charset=latin-1"))
    with scripted(script) as server, client() as ours, httpx.Client(trust_env=False) as theirs:
        first, second = ours.get(f"{server.url}/a?b=c%20d"), theirs.get(f"{server.url}/a?b=c%20d")
    assert first.content == second.content == body
    assert first.headers.multi_items() == second.headers.multi_items()
    assert first.status_code == second.status_code
    assert first.reason_phrase == second.reason_phrase
    heads = [request.split(b"\r\n")[0] for request in server.requests]
    assert heads == [b"GET /a?b=c%20d HTTP/1.1"] * 2


def test_one_connection_serves_many_requests() -> None:
    with scripted(every(answer(b"x"))) as server, client() as http:
        for _ in range(5):
            assert http.get(server.url).text == "x"
    assert server.num_connections == 1
    assert len(server.requests) == 5


def test_answers_without_a_body_keep_their_connection() -> None:
    no_content = b"HTTP/1.1 204 No Content\r\n\r\n"
    script = every(no_content, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", no_content)
    with scripted(script) as server, client() as http:
        assert http.delete(server.url).status_code == 204
        assert http.head(server.url).headers["content-length"] == "5"
        assert http.delete(server.url).status_code == 204
    assert server.num_connections == 1


def test_an_answer_that_was_not_read_to_its_end_costs_its_connection_and_nothing_else() -> None:
    with scripted(every(answer(bytes(4 * MIB)))) as server, client() as http:
        with http.stream("GET", server.url) as response:
            assert response.extensions[SOURCE].readinto(memoryview(bytearray(10))) == 10
        assert len(http.get(server.url).content) == 4 * MIB
    assert server.num_connections == 2


def test_a_source_fills_the_buffer_of_the_caller_and_knows_what_is_left() -> None:
    script = every(answer(b"0123456789"))
    with scripted(script) as server, client() as http, http.stream("GET", server.url) as response:
        source = response.extensions[SOURCE]
        assert source.remaining_bytes() == 10
        buffer = bytearray(7)
        assert source.readinto(memoryview(buffer)) == 7
        assert source.remaining_bytes() == 3
        assert source.readinto(memoryview(buffer)) == 3
        assert buffer == b"7893456"
        assert source.readinto(memoryview(buffer)) == 0


def close_after_first(caller: Caller, index: int) -> None:
    """The first connection is closed on its second request, without an answer: a keep-alive that ran out."""
    caller.head()
    caller.send(answer(b"first"))
    if caller.head() and index > 0:
        caller.send(answer(b"second"))


def test_a_get_on_a_kept_connection_that_the_server_closed_is_sent_again() -> None:
    with scripted(close_after_first) as server, client() as http:
        assert http.get(server.url).text == "first"
        assert http.get(server.url).text == "first"  # of the second connection
    assert server.num_connections == 2
    assert len(server.requests) == 3


def test_a_post_that_may_have_been_worked_on_is_not_sent_again() -> None:
    with scripted(close_after_first) as server, client() as http:
        assert http.get(server.url).text == "first"
        # closing with the body unread may reach the client as an end or as a reset
        with pytest.raises(httpx.RemoteProtocolError, match=r"without an answer|reset by peer"):
            http.post(server.url, content=b"load this")
    assert sum(request.startswith(b"POST") for request in server.requests) == 1


def test_a_get_on_a_fresh_connection_is_not_sent_again() -> None:
    def script(caller: Caller, index: int) -> None:
        caller.head()

    with scripted(script) as server, client() as http, pytest.raises(httpx.RemoteProtocolError):
        http.get(server.url)
    assert server.num_connections == 1


def test_a_post_that_could_not_be_sent_completely_is_sent_again() -> None:
    payload = bytes(range(256)) * (64 << 10)  # 16 MiB: more than the buffers of both sides hold
    digests = []

    def script(caller: Caller, index: int) -> None:
        caller.head()
        if index == 0:
            caller.send(answer(b"first"))
            caller.head()  # of the POST, and no more of it
            caller.reset()
        else:
            digests.append(hashlib.sha256(caller.body(len(payload))).hexdigest())
            caller.send(answer(b"got it"))

    with scripted(script) as server, client() as http:
        assert http.get(server.url).text == "first"
        assert http.post(server.url, content=payload).text == "got it"
    assert digests == [hashlib.sha256(payload).hexdigest()]
    assert server.num_connections == 2


def test_a_body_that_cannot_be_had_twice_is_not_sent_again() -> None:
    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(answer(b"first"))
        caller.head()
        caller.reset()

    pieces = (bytes(MIB) for _ in range(16))
    with scripted(script) as server, client() as http:
        assert http.get(server.url).text == "first"
        with pytest.raises(httpx.RemoteProtocolError):
            http.post(server.url, content=pieces)


def test_an_answer_that_comes_before_the_body_was_sent_is_the_answer() -> None:
    """413 of a service that does not want to read 16 MiB first."""

    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(answer(b"too large", "Connection: close", status="413 Content Too Large"))

    with scripted(script) as server, client() as http:
        response = http.post(server.url, content=bytes(16 * MIB))
    assert (response.status_code, response.text) == (413, "too large")


def test_a_connection_the_server_closed_while_idle_is_not_used() -> None:
    closed = threading.Event()

    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(answer(b"x"))
        if index == 0:
            caller.sock.close()
            closed.set()
        else:
            caller.head()

    with scripted(script) as server, client() as http:
        http.get(server.url)
        assert closed.wait(10)
        assert http.post(server.url, content=b"y").text == "x"  # a POST: it was not tried on the dead connection
    assert [request.split(b" ")[0] for request in server.requests] == [b"GET", b"POST"]


@pytest.mark.parametrize("head", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_ends_early_is_an_error_when_iterated_and_an_end_when_read(head: str) -> None:
    start = b"40\r\n" if "chunked" in head else b""

    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + start + bytes(40))

    with scripted(script) as server, client() as http:
        with pytest.raises(httpx.RemoteProtocolError, match="ended"):
            http.get(server.url)
        with http.stream("GET", server.url) as response:
            source, buffer, total = response.extensions[SOURCE], memoryview(bytearray(100)), 0
            try:
                while got := source.readinto(buffer):
                    total += got
            except httpx.RemoteProtocolError:
                assert "chunked" in head
            else:
                assert total == 40
                assert source.remaining_bytes() == 60
    assert server.num_connections == 2


def test_a_connection_that_breaks_while_the_body_comes_is_a_read_error() -> None:
    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + bytes(8 * MIB))
        caller.reset()

    with scripted(script) as server, client() as http, pytest.raises(httpx.ReadError):
        http.get(server.url)


def test_chunked_bodies_go_and_come() -> None:
    def script(caller: Caller, index: int) -> None:
        head = caller.head()
        assert b"transfer-encoding: chunked" in head.lower()
        assert caller.body(23) == b"3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n"
        caller.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n1\r\n!\r\n0\r\n\r\n")
        caller.head()

    with scripted(script) as server, client() as http:
        assert http.post(server.url, content=iter([b"abc", b"", b"defgh"])).content == b"wxyz!"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP answer"),
        (b"\x15\x03\x01\x00\x02\x02\x50", "not an HTTP answer"),  # a TLS alert
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "not an HTTP answer"),
        (b"", "without an answer"),
    ],
)
def test_what_is_not_http_is_a_protocol_error(reply: bytes, message: str) -> None:
    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(reply)

    with scripted(script) as server, client() as http, pytest.raises(httpx.RemoteProtocolError, match=message):
        http.get(server.url)


def test_waits_are_bounded() -> None:
    done = threading.Event()

    def silent(caller: Caller, index: int) -> None:
        caller.head()
        done.wait(30)

    def half(caller: Caller, index: int) -> None:
        caller.head()
        caller.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        done.wait(30)

    def deaf(caller: Caller, index: int) -> None:
        done.wait(30)

    try:
        for script, error in ((silent, httpx.ReadTimeout), (half, httpx.ReadTimeout), (deaf, httpx.WriteTimeout)):
            with scripted(script) as server, client(timeout_s=0.05) as http, pytest.raises(error):
                http.post(server.url, content=bytes(32 * MIB if script is deaf else 1))
    finally:
        done.set()


def test_a_refused_connection_is_a_connect_error_that_names_the_reason() -> None:
    with scripted(every()) as server:
        pass
    with client() as http, pytest.raises(httpx.ConnectError, match="Connection refused"):
        http.get(server.url)


def test_many_threads_share_a_few_connections_and_each_gets_its_own_answer() -> None:
    busy, most, lock = 0, 0, threading.Lock()

    def script(caller: Caller, index: int) -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        while head := caller.head():
            caller.send(answer(head.split(b" ")[1] * 5000))
        with lock:
            busy -= 1

    transport = FastTransport(max_connections=3)
    with scripted(script) as server, client(transport) as http, ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda i: http.get(f"{server.url}/{i}").text, range(120)))
    assert answers == [f"/{i}" * 5000 for i in range(120)]
    assert most <= 3


def test_a_caller_that_finds_all_connections_busy_waits_no_longer_than_allowed() -> None:
    timeout = httpx.Timeout(30, pool=0.05)
    with scripted(every(answer(b"x"))) as server, client(FastTransport(max_connections=1)) as http:
        busy = pytest.raises(httpx.PoolTimeout, match="all 1 connections stayed busy")
        with http.stream("GET", server.url), busy:
            http.get(server.url, timeout=timeout)
        assert http.get(server.url, timeout=timeout).text == "x"


def test_a_failed_request_gives_its_place_in_the_pool_back() -> None:
    with scripted(every()) as server:
        pass
    with client(FastTransport(max_connections=1)) as http:
        for _ in range(3):
            with pytest.raises(httpx.ConnectError):
                http.get(server.url, timeout=httpx.Timeout(30, pool=0.05))


def test_an_idle_connection_makes_room_for_another_address() -> None:
    transport = FastTransport(max_connections=1)
    with scripted(every(answer(b"a"))) as one, scripted(every(answer(b"b"))) as two, client(transport) as http:
        assert [http.get(url).text for url in (one.url, two.url, one.url)] == ["a", "b", "a"]


def test_an_idle_connection_is_kept_only_so_long() -> None:
    now = 0.0
    pool = ConnectionPool(uds=None, tls=ssl.create_default_context, keep_s=4.0, clock=lambda: now)
    with scripted(every(answer(b"a"))) as server:
        address = Address("http", "127.0.0.1", int(server.url.rpartition(":")[2]))
        first = pool.acquire(address, timeout_s=1, connect_timeout_s=5)
        first.http.connect()
        pool.release(first)
        now = 3.9
        assert pool.acquire(address, timeout_s=1, connect_timeout_s=5) is first
        pool.release(first)
        now = 8.0
        second = pool.acquire(address, timeout_s=1, connect_timeout_s=5)
        assert second is not first
        assert first.http.sock is None
        pool.drop(second)
        pool.close()


def test_a_closed_transport_says_so() -> None:
    transport = FastTransport()
    transport.close()
    with pytest.raises(RuntimeError, match="the transport is closed"):
        transport.handle_request(httpx.Request("GET", "http://127.0.0.1:1/"))


def test_another_scheme_is_refused() -> None:
    with client() as http, pytest.raises(httpx.UnsupportedProtocol, match="ftp"):
        http.get("ftp://127.0.0.1/")


def test_a_unix_socket_carries_requests(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with scripted(every(answer(b"local")), uds=path) as server, client(FastTransport(uds=path)) as http:
        assert http.get("http://localhost/info").text == "local"
    assert b"GET /info HTTP/1.1" in server.requests[0]
    with client(FastTransport(uds=str(tmp_path / "none"))) as http, pytest.raises(httpx.ConnectError, match="No such"):
        http.get("http://localhost/info")


def test_https_needs_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(cert, key)
    body = bytes(range(256)) * 20_000
    with scripted(every(answer(body)), tls=served) as server:
        trusting = FastTransport(tls=ssl.create_default_context(cafile=cert))
        with client(trusting) as http:
            assert http.get(server.url).content == body
            assert http.get(server.url).content == body
        assert server.num_connections == 1
        with client() as http, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            http.get(server.url)


def test_neither_direction_holds_a_body_twice() -> None:
    size = 24 * MIB
    received: list[bytes] = []

    def script(caller: Caller, index: int) -> None:
        caller.head()
        caller.skip(size)
        received.append(b"all")
        caller.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // MIB):
            caller.send(bytes(MIB))

    with scripted(script) as server, client() as http:
        payload, target = bytes(size), memoryview(bytearray(size))
        tracemalloc.start()
        try:
            with http.stream("POST", server.url, content=payload) as response:
                source, done = response.extensions[SOURCE], 0
                while got := source.readinto(target[done : done + MIB]):
                    done += got
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert done == size
    assert received == [b"all"]
    assert peak < 8 * MIB  # the server's own pieces are in this process, too: a copy of a body would be 24 MiB
