"""A real `transformers serve`: chat only, text only. What the client makes of a server that gives no ids."""

from collections.abc import Iterator

import pytest

from engines.asks import turn_for
from engines.margins import explain
from engines.prompts import PROMPTS
from engines.servers import ENGINES, Server, serving

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def transformers_serve() -> Iterator[Server]:
    with serving(ENGINES["transformers"]) as server:
        yield server


@pytest.fixture(scope="module")
def references(transformers_serve, source_at, bridge):
    source = source_at(transformers_serve)
    return source, {name: source.complete(turn_for(bridge, name)) for name in list(PROMPTS)[:4]}


def test_the_dialect_is_plain_chat_without_ids(references):
    facts = references[0].facts()
    assert (facts["kind"], facts["dialect"], facts["returns_ids"]) == ("transformers", "chat", False)


def test_text_that_round_trips_gives_the_ids_of_an_engine_that_has_them(references, target, bridge, report):
    """The same weights in float32: the ids found from text are our argmax, or the reference says that it drifted."""
    kept = {name: done for name, done in references[1].items() if not done.drift}
    found = explain(target, {name: (bridge.prompt_ids(name), done.response_ids) for name, done in kept.items()})
    report("transformers-agreement", {"round_trip": f"{len(kept)}/{len(references[1])}", **found.to_dict()})
    assert kept
    assert found.agreement > 0.995
