"""Runs an application with uvicorn: never open on a network by accident, says its address, drains on SIGTERM."""

import contextlib
import os
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tauscope_serving.connections import BoundedHttpProtocol, drop_dead_peers
from tauscope_serving.keyfile import read_key_file
from tauscope_serving.settings import ServingSettings
from tauscope_wire.errors import RequestError

BACKLOG = 256
KEEP_ALIVE_S = 75
"""How long an idle connection stays open; longer than clients and proxies keep theirs, so that they close first."""


def check_exposure(settings: ServingSettings) -> None:
    """Refuse a network address without keys, and keys or certificates that cannot be used.

    Raises:
        RequestError: names the ways out.
    """
    if not settings.is_loopback and settings.keys_file is None and not settings.open_to_network:
        raise RequestError(
            f"--host {settings.host} is reachable from the network and no --keys file is given: anybody could use this "
            "service. Give --keys FILE (make keys with `keys add`), listen on 127.0.0.1, or say --open-to-network"
        )
    if settings.keys_file is not None:
        if not settings.keys_file.exists():
            raise RequestError(f"--keys {settings.keys_file}: no such file; make the first key with `keys add NAME`")
        read_key_file(settings.keys_file)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise RequestError("--tls-cert and --tls-key go together: give both or none")
    if settings.tls_cert is not None and settings.tls_key is not None:
        _check_certificate(settings.tls_cert, settings.tls_key)


def _check_certificate(cert: Path, key: Path) -> None:
    try:
        # an empty password in place of a question on a terminal that a unit does not have
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = error.strerror or type(error).__name__ if isinstance(error, OSError) else type(error).__name__
        raise RequestError(
            f"--tls-cert {cert} --tls-key {key}: {reason}; both must be readable PEM files that belong together, the "
            "key without a pass phrase"
        ) from None


def bind(settings: ServingSettings) -> socket.socket:
    """Take the address before the model is loaded, so that a port in use is found in the first second.

    Nobody can connect until `serve`: a caller that comes early is refused at once, it does not hang.

    Raises:
        RequestError: the address is in use or not ours.
    """
    if settings.uds is not None:
        _remove_stale_socket(settings.uds)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | tuple[str, int] = os.fspath(settings.uds)
    else:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        drop_dead_peers(listener)
        address = (settings.host, settings.port)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(str(settings.uds or f"{settings.host}:{settings.port}"), error) from None
    return listener


def _remove_stale_socket(path: Path) -> None:
    """A service that was killed leaves its Unix socket behind; one that nobody listens on is removed."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return  # somebody's file: bind reports it
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            return


def _cannot_listen(where: str, error: OSError) -> RequestError:
    return RequestError(f"cannot listen on {where}: {error.strerror}; choose another --port or stop what uses it")


def url_of(listener: socket.socket, *, tls: bool) -> str:
    """The address to give to clients."""
    if listener.family == socket.AF_UNIX:
        return f"unix://{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def serve(
    app: FastAPI, settings: ServingSettings, *, listener: socket.socket, started: Callable[[], None] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM, then let requests in flight finish for `settings.drain_s`.

    Args:
        app: what to serve.
        settings: TLS and drain time.
        listener: a bound socket, see `bind`.
        started: called once when connections are accepted.

    Raises:
        RequestError: another process took the same address between `bind` and now.
    """
    try:
        build_server(app, settings, started=started).run(sockets=[listener])
    finally:
        if settings.uds is not None:
            with contextlib.suppress(OSError):
                settings.uds.unlink()


def build_server(
    app: FastAPI,
    settings: ServingSettings,
    *,
    started: Callable[[], None] | None = None,
    protocol: type[BoundedHttpProtocol] = BoundedHttpProtocol,
) -> uvicorn.Server:
    """The server that `serve` runs; `should_exit = True` stops it from another thread."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        # who calls is told by keys: headers of a proxy are not believed
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    return _Announcing(config, started)


class _Announcing(uvicorn.Server):
    """A server that says when it accepts connections."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            try:
                # two processes may bind an address at once, only one may listen; uvloop does not report the second
                listener.listen(BACKLOG)
            except OSError as error:
                raise _cannot_listen(str(listener.getsockname()), error) from None
        await super().startup(sockets)
        if self.started and self._announce is not None:
            self._announce()
