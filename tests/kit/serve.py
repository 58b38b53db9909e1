"""Runs a real service in this process: uvicorn on a free port of loopback, in a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from tauscope_serving.connections import BoundedHttpProtocol
from tauscope_serving.server import bind, build_server, url_of
from tauscope_serving.settings import ServingSettings
from tauscope_wire.messages import Limits

START_TIMEOUT_S = 60.0
"""A bound, not a wait: start-up is announced by an event. Generous, because two cores may be busy."""

SMALL_LIMITS = Limits(
    max_body_bytes=1 << 20,
    max_tokens=2048,
    max_layers=64,
    max_answer_bytes=1 << 28,
    max_queued=64,
    max_new_tokens=256,
    max_anchors=1024,
    max_top_k=64,
    default_deadline_s=60.0,
    max_deadline_s=120.0,
)
"""Limits that a test can reach with small inputs."""


@contextmanager
def running(
    app: FastAPI,
    settings: ServingSettings | None = None,
    *,
    protocol: type[BoundedHttpProtocol] = BoundedHttpProtocol,
) -> Iterator[str]:
    """Serve `app` until the block ends.

    Args:
        app: what to serve; its lifespan runs in the thread of the server.
        settings: where to listen; a free port of loopback by default.
        protocol: bounds on connections.

    Yields:
        Base URL, for example `http://127.0.0.1:40123`.
    """
    settings = settings or ServingSettings(limits=SMALL_LIMITS)
    listener = bind(settings)
    url = url_of(listener, tls=settings.tls_cert is not None)
    started = threading.Event()
    server = build_server(app, settings, started=started.set, protocol=protocol)

    def serve() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            started.set()  # also when start-up fails, so that nobody waits for it

    thread = threading.Thread(target=serve, name="test-server", daemon=True)
    thread.start()
    try:
        if not started.wait(START_TIMEOUT_S) or not server.started:
            raise RuntimeError("the service did not start; its log says why")
        yield url
    finally:
        server.should_exit = True
        thread.join(START_TIMEOUT_S)
        listener.close()
