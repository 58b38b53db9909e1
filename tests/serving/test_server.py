"""Listening: never open by accident, TLS, Unix sockets, silent and endless callers, and a stop that drains."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
import pytest

from kit.echo import Echo
from kit.serve import SMALL_LIMITS, running
from tauscope_serving.connections import MAX_HEAD_BYTES, BoundedHttpProtocol
from tauscope_serving.keyfile import add_key
from tauscope_serving.server import bind, build_server, check_exposure, serve, url_of
from tauscope_serving.settings import ServingSettings
from tauscope_wire.errors import RequestError


def settings(**fields: object) -> ServingSettings:
    return ServingSettings.model_validate({"limits": SMALL_LIMITS} | fields)


def certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    extension = "subjectAltName=IP:127.0.0.1"
    paths = ["-addext", extension, "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *paths], check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com", ""])
def test_a_network_address_without_keys_is_refused_and_the_ways_out_are_named(host: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_exposure(settings(host=host))
    for way in ("--keys", "127.0.0.1", "--open-to-network"):
        assert way in str(caught.value)


def test_loopback_keys_and_the_operators_word_are_accepted(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    add_key(keys, "a", roles=("read",))
    for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        check_exposure(settings(host=host))
    check_exposure(settings(uds=tmp_path / "s", host="0.0.0.0"))
    check_exposure(settings(host="0.0.0.0", keys_file=keys))
    check_exposure(settings(host="0.0.0.0", open_to_network=True))


def test_a_missing_or_broken_keys_file_is_found_at_start_up(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    with pytest.raises(RequestError, match=r"no such file; make the first key with `keys add NAME`"):
        check_exposure(settings(keys_file=keys))
    keys.write_text("{}}")
    with pytest.raises(RequestError, match="not a keys file"):
        check_exposure(settings(keys_file=keys))


def test_tls_files_are_checked_at_start_up(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    _, other_key = certificate(tmp_path, "other")
    check_exposure(settings(tls_cert=cert, tls_key=key))
    with pytest.raises(RequestError, match="go together"):
        check_exposure(settings(tls_cert=cert))
    for bad_cert, bad_key in ((cert, other_key), (key, key), (cert, tmp_path / "none"), (tmp_path, key)):
        with pytest.raises(RequestError, match="both must be readable PEM files that belong together"):
            check_exposure(settings(tls_cert=bad_cert, tls_key=bad_key))


def test_a_key_with_a_pass_phrase_is_refused_instead_of_asking_for_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes256", "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(RequestError, match="without a pass phrase"):
        check_exposure(settings(tls_cert=cert, tls_key=locked))


def test_https_is_spoken_with_the_given_files(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with running(Echo().app, settings(tls_cert=cert, tls_key=key)) as url:
        assert url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{url}/healthz", verify=trusted).json()["status"] == "ok"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/healthz")


def test_an_address_in_use_is_said_in_one_line() -> None:
    with running(Echo().app) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(RequestError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*choose another --port"):
            bind(settings(port=port))


def test_two_services_that_take_an_address_at_once_do_not_both_believe_they_have_it() -> None:
    first = bind(settings())
    second = bind(settings(port=first.getsockname()[1]))  # possible while nobody listens
    try:
        first.listen()
        with pytest.raises(RequestError, match="cannot listen on"):
            serve(Echo().app, settings(), listener=second)
    finally:
        first.close()
        second.close()


def test_an_address_that_is_not_ours_and_a_name_that_is_unknown_are_said() -> None:
    for host in ("203.0.113.7", "no-such-host.invalid"):
        with pytest.raises(RequestError, match=f"cannot listen on {host}"):
            bind(settings(host=host))


def test_a_unix_socket_is_served_and_one_left_by_a_killed_service_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()  # as kill -9 leaves it: the file is there, nobody listens
    with running(Echo().app, settings(uds=path)) as url:
        assert url == f"unix://{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
            assert client.get("/healthz").json()["status"] == "ok"
        with pytest.raises(RequestError, match="cannot listen on"):
            bind(settings(uds=path))


def test_a_file_in_the_place_of_the_unix_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(RequestError, match="cannot listen on"):
        bind(settings(uds=path))
    assert path.read_text() == "data"


def test_addresses_are_shown_as_urls() -> None:
    for host, shown in (("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")):
        try:
            listener = bind(settings(host=host))
        except RequestError:
            pytest.skip("no IPv6 here")
        with listener:
            assert url_of(listener, tls=False).startswith(shown)


class Hurried(BoundedHttpProtocol):
    """Waits a tenth of a second for a head."""

    head_timeout_s = 0.1


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "letter", "head"])
def test_a_caller_that_does_not_finish_its_head_is_disconnected(sent: bytes) -> None:
    with running(Echo().app, protocol=Hurried) as url, connect(url) as raw:
        raw.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(1) == b""


def test_a_second_request_on_a_connection_gets_a_time_of_its_own() -> None:
    with running(Echo().app, protocol=Hurried) as url, connect(url) as raw:
        for _ in range(3):
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        raw.sendall(b"GET /healthz HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(1) == b""


def test_a_head_without_end_is_refused() -> None:
    with running(Echo().app) as url, connect(url) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\n")
        received = b""
        try:
            for index in range(1 + 4 * MAX_HEAD_BYTES // 1000):
                raw.sendall(b"X-%d: " % index + b"y" * 1000 + b"\r\n")
            received = raw.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return
        assert received.startswith(b"HTTP/1.1 400") or received == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"POST /sum HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\n b: folded\r\n\r\n",
        b"GET http://other.example/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_header_and_path_tricks_get_an_answer_or_a_closed_connection_and_the_service_lives(
    request_bytes: bytes,
) -> None:
    with running(Echo().app) as url:
        with connect(url) as raw:
            raw.sendall(request_bytes)
            raw.shutdown(socket.SHUT_WR)
            answer = raw.recv(65536)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
        assert b"root:" not in answer
        assert httpx.get(f"{url}/healthz").status_code == 200


PROGRAM = textwrap.dedent(
    """
    import sys
    from kit.echo import Echo
    from kit.serve import SMALL_LIMITS
    from tauscope_serving.logs import set_up_logs
    from tauscope_serving.server import bind, serve, url_of
    from tauscope_serving.settings import ServingSettings

    set_up_logs("warning")
    settings = ServingSettings(limits=SMALL_LIMITS)
    listener = bind(settings)
    echo = Echo()
    echo.gate.clear()
    inner = echo.loop._execute
    def execute(jobs):
        print("computing", flush=True)
        sys.stdin.readline()
        echo.gate.set()
        return inner(jobs)
    echo.loop._execute = execute
    serve(echo.app, settings, listener=listener, started=lambda: print(url_of(listener, tls=False), flush=True))
    """
)


def test_sigterm_lets_the_request_in_flight_finish_and_refuses_new_ones() -> None:
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    answers: list[httpx.Response] = []
    calling = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{url}/sum", json={"token_ids": [20, 22]}, timeout=60))
    )
    calling.start()
    assert process.stdout.readline() == "computing\n"
    process.send_signal(signal.SIGTERM)
    while True:  # until the listener is closed
        try:
            connect(url).close()
        except ConnectionResetError:  # closed with this connection still in its queue
            continue
        except ConnectionRefusedError:
            break
    process.stdin.write("\n")
    process.stdin.close()
    calling.join(60)
    assert answers[0].json()["total"] == 42
    assert process.wait(60) == -signal.SIGTERM or process.returncode == 0
    process.stdout.close()


def test_a_stop_from_another_thread_ends_the_server() -> None:
    listener = bind(settings())
    started = threading.Event()
    server = build_server(Echo().app, settings(), started=started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    assert started.wait(60)
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()
