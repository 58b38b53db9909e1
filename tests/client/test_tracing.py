"""The client sends its spans to the collector that the environment names, before it ends."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kit.client import table_services


class Collector(ThreadingHTTPServer):
    """Takes what is sent to /v1/traces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[tuple[str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


EXTRACT = ["extract", "texts.jsonl", "--out", "states", "--layers", "1"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["doctor"], {"GET /info", "POST /hidden_states"}),
        (EXTRACT, {"GET /info", "POST /hidden_states"}),
    ],
    ids=["doctor", "extract"],
)
def test_a_command_exports_its_requests_and_sends_their_context(
    words: list[str], asked: set[str], tmp_path: Path
) -> None:
    (tmp_path / "texts.jsonl").write_text('{"token_ids": [3, 4, 5]}\n')
    with Collector() as collector, table_services() as services:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        environment = dict(os.environ) | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        words = [*words, "--target", services.target_url]
        subprocess.run(
            [sys.executable, "-m", "tauscope_client.cli", *words],
            env=environment,
            capture_output=True,
            check=False,
            cwd=tmp_path,
        )
        collector.shutdown()
        thread.join()
    spans = []
    for path, body in collector.received:
        assert path == "/v1/traces"
        message = ExportTraceServiceRequest.FromString(body)
        (resource,) = message.resource_spans
        assert "tauscope" in {field.value.string_value for field in resource.resource.attributes}
        spans += [span.name for scope in resource.scope_spans for span in scope.spans]
    assert asked <= set(spans)
