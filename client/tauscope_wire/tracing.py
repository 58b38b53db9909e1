"""OpenTelemetry spans, where the extra `tracing` is installed and the standard OTEL_* variables ask for them.

Owns what client and services share: the context that travels (W3C `traceparent`), names and attributes of spans.
Nothing is imported before somebody asks for it. Attributes are counts, names and codes: never a prompt, token ids, a
handle, a key or the message of an error, which may quote its input.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tauscope_wire.errors import RequestError, TauscopeError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

__all__ = ["ENDPOINTS", "Tracing", "active_tracing", "tracing_as_active", "tracing_from"]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Either of them switches traces on, `OTEL_TRACES_EXPORTER=otlp` does as well."""
EXPORTER, DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
CONTEXT_HEADERS = ("traceparent", "tracestate")

_active: ContextVar["Tracing | None"] = ContextVar("tauscope_tracing", default=None)


class Tracing:
    """Makes spans of one program.

    Args:
        provider: where spans go; its exporter is the business of who made it.
    """

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("tauscope")
        self._context = TraceContextTextMapPropagator()

    @contextmanager
    def answering(self, method: str, headers: Mapping[str, str]) -> Iterator["Span"]:
        """A span around a request that is served, as a child of what its `traceparent` names.

        Args:
            method: of the request; who knows the route renames the span.
            headers: names in lower case.
        """
        from opentelemetry.trace import SpanKind

        parent = self._context.extract({name: headers[name] for name in CONTEXT_HEADERS if name in headers})
        with self._tracer.start_as_current_span(
            method, context=parent, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span

    @contextmanager
    def asking(self, method: str, path: str) -> Iterator[Mapping[str, str]]:
        """A span around a request that is sent; gives the headers that take the context along.

        Args:
            method: of the request.
            path: only its first part is named: the rest may be a handle.
        """
        from opentelemetry.trace import SpanKind, StatusCode

        route = "/" + path.lstrip("/").partition("/")[0].partition("?")[0]
        with self._tracer.start_as_current_span(
            f"{method} {route}", kind=SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
        ) as span:
            carrier: dict[str, str] = {}
            self._context.inject(carrier)
            try:
                yield carrier
            except BaseException as error:
                kind = error.code if isinstance(error, TauscopeError) else type(error).__name__
                span.set_status(StatusCode.ERROR)
                span.set_attribute("error.type", kind)
                raise

    def stages(self, timing_ms: Mapping[str, float]) -> None:
        """Spans of stages that have just ended, one after the other in the order given, below the current span."""
        ends = time.time_ns()
        times = {stage: value for stage, value in timing_ms.items() if not stage.endswith("tokens")}
        starts = ends - int(1e6 * sum(times.values()))
        for stage, value_ms in times.items():
            span = self._tracer.start_span(stage, start_time=starts)
            starts += int(1e6 * value_ms)
            span.end(end_time=min(starts, ends))


def tracing_from(environ: Mapping[str, str], *, service: str, say: Callable[[str], None]) -> Tracing | None:
    """Tracing as the environment asks for it, or None; exporter and sampler read their own OTEL_* variables.

    Args:
        environ: of the process.
        service: name in traces, where `OTEL_SERVICE_NAME` gives none.
        say: told in one line when traces are asked for and the extra is missing.

    Raises:
        RequestError: an exporter that is not supported.
    """
    exporter = environ.get(EXPORTER, "").strip().lower()
    is_wanted = exporter not in ("", "none") or (not exporter and any(environ.get(name) for name in ENDPOINTS))
    if not is_wanted or environ.get(DISABLED, "").strip().lower() == "true":
        return None
    if exporter not in ("", "otlp"):
        raise RequestError(f"{EXPORTER}={exporter}: traces are exported by otlp, or not at all (none)")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        say("warning: OTEL_* asks for traces; they need: pip install 'tauscope[tracing]'")
        return None
    name = environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))  # ends with the process, spans sent
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


@contextmanager
def tracing_as_active(tracing: Tracing | None) -> Iterator[None]:
    """Make it what `active_tracing` gives until the block ends."""
    token = _active.set(tracing)
    try:
        yield
    finally:
        _active.reset(token)


def active_tracing() -> Tracing | None:
    """The tracing of the command that runs."""
    return _active.get()
