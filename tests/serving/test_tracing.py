"""Spans of requests and stages: the context travels, nothing of a prompt is in them, and they are off by default."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from kit.serve import running
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.service import create_service
from tauscope_wire.connection import Connection
from tauscope_wire.errors import GoneError, RequestError
from tauscope_wire.messages import Health
from tauscope_wire.tracing import Tracing, tracing_from

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRET = "the secret of the pharaoh"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(provider)


@pytest.fixture
def url(tracing: Tracing) -> Iterator[str]:
    metrics = ServiceMetrics("echo")
    app = create_service("echo", version="0", description="", metrics=metrics, not_ready=lambda: (), tracing=tracing)

    @app.get("/things/{name}")
    async def things(name: str) -> Health:
        metrics.observe_stages({"queue": 1.0, "pass": 2.0, "pass_tokens": 40.0})
        if name == "gone":
            raise GoneError(f"no {SECRET}")
        return Health(status="ok")

    with running(app) as address:
        yield address


def by_name(exported: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exported.get_finished_spans()}


def hexadecimal(span: ReadableSpan) -> tuple[str, str, str | None]:
    context = span.get_span_context()
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", span.parent and f"{span.parent.span_id:016x}"


def test_a_request_is_a_child_of_its_caller_and_its_stages_are_children_of_it(
    url: str, exported: InMemorySpanExporter
) -> None:
    httpx.get(f"{url}/things/{SECRET}", headers=CALLER | {"X-Request-Id": "run-7"}, params={"q": SECRET})
    spans = by_name(exported)
    assert set(spans) == {"GET /things/{name}", "queue", "pass"}
    request = spans["GET /things/{name}"]
    trace, span_id, parent = hexadecimal(request)
    assert (trace, parent) == (TRACE, PARENT)
    assert request.kind is SpanKind.SERVER
    for stage, expected_ms in (("queue", 1.0), ("pass", 2.0)):
        assert hexadecimal(spans[stage])[::2] == (TRACE, span_id)
        start, end = spans[stage].start_time, spans[stage].end_time
        assert start is not None
        assert end is not None
        assert end - start == expected_ms * 1e6
    assert request.attributes is not None
    assert dict(request.attributes) == {
        "http.request.method": "GET",
        "http.route": "/things/{name}",
        "http.response.status_code": 200,
        "tauscope.request_id": "run-7",
    }


def test_no_text_of_a_request_or_an_error_is_in_a_span(
    url: str, tracing: Tracing, exported: InMemorySpanExporter
) -> None:
    with Connection(url, tracing=tracing) as connection, pytest.raises(GoneError):
        connection.get_json("/things/gone", Health, params={"q": SECRET})
    spans = exported.get_finished_spans()
    assert len(spans) == 4
    for span in spans:
        assert "pharaoh" not in span.to_json()
        assert not span.events
    codes = [span.attributes["error.type"] for span in spans if span.attributes and "error.type" in span.attributes]
    assert codes == ["handle_gone", "handle_gone"]


def test_a_connection_takes_the_context_along(url: str, tracing: Tracing, exported: InMemorySpanExporter) -> None:
    with Connection(url, tracing=tracing) as connection:
        connection.get_json("/things/a-handle", Health)
    spans = by_name(exported)
    asked, answered = spans["GET /things"], spans["GET /things/{name}"]
    assert asked.kind is SpanKind.CLIENT
    assert hexadecimal(answered)[::2] == hexadecimal(asked)[:2]
    assert "a-handle" not in asked.to_json()


@pytest.mark.parametrize("sent", ["", "00-zz-zz-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 5000])
def test_a_traceparent_that_is_none_begins_a_trace(url: str, exported: InMemorySpanExporter, sent: str) -> None:
    assert httpx.get(f"{url}/things/a", headers={"traceparent": sent}).status_code == 200
    assert by_name(exported)["GET /things/{name}"].parent is None


def test_probes_of_machines_make_no_spans(url: str, exported: InMemorySpanExporter) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert httpx.get(url + path).status_code == 200
    assert not exported.get_finished_spans()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_traces_are_off_unless_the_environment_asks_for_them(environ: dict[str, str]) -> None:
    assert tracing_from(environ, service="s", say=pytest.fail) is None


def test_an_exporter_that_is_not_supported_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="OTEL_TRACES_EXPORTER=zipkin"):
        tracing_from({"OTEL_TRACES_EXPORTER": "zipkin"}, service="s", say=print)


def test_without_the_extra_one_line_says_what_is_missing() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from tauscope_wire.tracing import tracing_from\n"
        "assert tracing_from({'OTEL_TRACES_EXPORTER': 'otlp'}, service='s', say=print) is None\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == ["warning: OTEL_* asks for traces; they need: pip install 'tauscope[tracing]'"]


@pytest.mark.parametrize(
    ("module", "absent"),
    # FastAPI imports the API by itself where it is installed; it does nothing without the SDK
    [("tauscope_client.cli", "opentelemetry"), ("tauscope_serving.service", "opentelemetry.sdk")],
)
def test_nothing_of_opentelemetry_is_imported_while_traces_are_off(module: str, absent: str) -> None:
    program = (
        f"import sys, {module}\n"
        "from tauscope_wire.tracing import tracing_from\n"
        "tracing_from({}, service='s', say=print)\n"
        f"assert {absent!r} not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
