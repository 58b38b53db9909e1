"""A span for every request that a service answers, below the one that its caller names in `traceparent`."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tauscope_wire.tracing import Tracing

QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines; they would be most of all spans."""


class RequestSpans:
    """Middleware inside of `RequestRecord`: the span carries what the log line carries, and nothing else.

    Args:
        app: what answers.
        tracing: makes the spans.
    """

    def __init__(self, app: ASGIApp, *, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._tracing.answering(scope["method"], headers) as span:

            async def watched(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self._app(scope, receive, watched)
            finally:
                state = scope["state"]
                route = getattr(scope.get("route"), "path", "unknown")
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.request.method", scope["method"])
                span.set_attribute("http.route", route)
                span.set_attribute("tauscope.request_id", state["request_id"])
                if "error_code" in state:
                    span.set_attribute("error.type", state["error_code"])
                for name, value in state.get("log_fields", {}).items():
                    if isinstance(value, str | int | float):
                        span.set_attribute(f"tauscope.{name}", value)
