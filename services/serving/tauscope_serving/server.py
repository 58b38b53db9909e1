"""Runs an application with uvicorn: never open on a network by accident, says its address, drains on SIGTERM."""

import os
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from tauscope_serving.settings import ServingSettings
from tauscope_wire.errors import RequestError

BACKLOG = 256


def check_exposure(settings: ServingSettings) -> None:
    """Refuse a network address without keys.

    Raises:
        RequestError: names the two ways out.
    """
    if not settings.is_loopback and settings.keys_file is None and not settings.open_to_network:
        raise RequestError(
            f"--host {settings.host} is reachable from the network and no --keys file is given: anybody could use this "
            "service. Give --keys FILE (make keys with `keys add`), listen on 127.0.0.1, or say --open-to-network"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise RequestError("--tls-cert and --tls-key go together: give both or none")


def bind(settings: ServingSettings) -> socket.socket:
    """Take the address before the model is loaded, so that a port in use is found in the first second.

    Raises:
        RequestError: the address is in use or not ours.
    """
    if settings.uds is not None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | tuple[str, int] = os.fspath(settings.uds)
    else:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = (settings.host, settings.port)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        where = settings.uds or f"{settings.host}:{settings.port}"
        raise RequestError(
            f"cannot listen on {where}: {error.strerror}; choose another --port or stop what uses it"
        ) from None
    return listener


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
    """
    build_server(app, settings, started=started).run(sockets=[listener])


def build_server(
    app: FastAPI, settings: ServingSettings, *, started: Callable[[], None] | None = None
) -> uvicorn.Server:
    """The server that `serve` runs; `should_exit = True` stops it from another thread."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
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
        await super().startup(sockets)
        if self.started and self._announce is not None:
            self._announce()
