"""A real llama.cpp server (llama-cpp-python) with the 4-bit file: another server, another arithmetic."""

from collections.abc import Iterator

import pytest

from engines.asks import turn_for
from engines.margins import explain
from engines.prompts import PROMPTS
from engines.servers import ENGINES, Server, serving

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def llamacpp(smollm2) -> Iterator[Server]:
    with serving(ENGINES["llamacpp"]) as server:
        yield server


def test_references_come_as_text_and_the_agreement_shows_that_it_is_another_model(
    llamacpp, source_at, target, bridge, report
):
    """Computed from 4-bit blocks, greedy text is not what our service would say: the number says so, nothing fails."""
    source = source_at(llamacpp)
    done = {name: source.complete(turn_for(bridge, name, max_new_tokens=48)) for name in list(PROMPTS)[:3]}
    kept = {name: one for name, one in done.items() if not one.drift}
    found = explain(target, {name: (bridge.prompt_ids(name), one.response_ids) for name, one in kept.items()})
    report("llamacpp-agreement", {"facts": source.facts(), "round_trip": len(kept), **found.to_dict()})
    assert 0.5 < found.agreement <= 1.0
