"""One trace from a client over the drafter service to the target service."""

from pathlib import Path

import torch
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kit import drafters
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.app import DrafterService, create_app
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.states import StatesSource
from tauscope_serving.spans import RequestSpans
from tauscope_wire.connection import Connection
from tauscope_wire.messages import DraftRequest, HiddenByHandle
from tauscope_wire.reader import read_draft
from tauscope_wire.tracing import Tracing

STATES, IDS = drafters.random_sequence(30)
HANDLE = "0123456789abcdef"


def test_a_draft_is_one_trace_over_client_drafter_and_target(tmp_path: Path) -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracing = Tracing(provider)
    engine = Engine(open_place(torch.device("cpu"), torch.float32, drafters.write_target(tmp_path / "target")))
    drafters.write_folder(tmp_path / "one", drafters.dflash_config(), drafters.dflash_tensors())
    engine.load("one", tmp_path / "one", LoadOptions(), roots=None)
    target = drafters.StatesServer(dict(zip(drafters.TAPS, STATES, strict=True)), IDS.tolist()).app()
    target.add_middleware(RequestSpans, tracing=tracing)
    with running(target) as target_url, Connection(target_url, tracing=tracing) as upstream:
        states = StatesSource(upstream, mapping=False)
        service = DrafterService(engine=engine, states=states, limits=SMALL_LIMITS, version="0", tracing=tracing)
        with running(create_app(service)) as url, Connection(url, key="key-of-a-team", tracing=tracing) as client:
            asked = DraftRequest(
                drafter="one", hidden=HiddenByHandle(handle=HANDLE), token_ids=IDS.tolist(), response_start=12
            )
            client.post_tensors("/draft_block", asked, read_draft)
    spans = [span for span in exported.get_finished_spans() if "info" not in span.name]
    assert len({span.get_span_context().trace_id for span in spans}) == 1
    assert chain(spans, "GET /hidden_states/{handle}") == [
        "GET /hidden_states/{handle}",  # the target answers
        "GET /hidden_states",  # the drafter asks
        "POST /draft_block",  # the drafter answers
        "POST /draft_block",  # the client asks
    ]
    stages = {span.name for span in spans} - {"GET /hidden_states/{handle}", "GET /hidden_states", "POST /draft_block"}
    assert stages == {"read_http", "queue", "fuse", "draft"}
    (answered,) = [s for s in spans if s.name == "POST /draft_block" and s.attributes and "http.route" in s.attributes]
    assert answered.attributes is not None
    assert answered.attributes["tauscope.drafter"] == "one"
    assert answered.attributes["tauscope.anchors"] == len(IDS) - 13
    for span in spans:
        assert HANDLE not in span.to_json()
        assert "key-of-a-team" not in span.to_json()


def chain(spans: list[ReadableSpan], name: str) -> list[str]:
    """Names from a span up to the root."""
    by_id = {span.get_span_context().span_id: span for span in spans}
    found = next(span for span in spans if span.name == name)
    names = [found.name]
    while found.parent is not None:
        found = by_id[found.parent.span_id]
        names.append(found.name)
    return names
