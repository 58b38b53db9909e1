"""A real `transformers serve`: chat only, text only. What the client makes of a server that gives no ids."""

from dataclasses import replace

import pytest

from engines.asks import turn_for
from engines.claims import AnyEngine
from engines.margins import explain
from engines.prompts import PROMPTS

pytestmark = pytest.mark.engines

ENGINE = "transformers"
NAMES = tuple(PROMPTS)[:4]


class TestTransformersServe(AnyEngine):
    """By `/v1/chat/completions`, `--reference openai=URL`."""

    test_a_prompt_over_the_context_is_one_clear_refusal = None  # it knows no limit and computes on

    def test_the_dialect_is_plain_chat_without_ids(self, references, server, source_at, bridge):
        source = source_at(server)
        source.complete(turn_for(bridge, "short-stop", max_new_tokens=2))
        facts = source.facts()
        assert (facts["kind"], facts["dialect"], facts["returns_ids"]) == ("transformers", "chat", False)
        assert facts["model"] == str(server.engine.model)
        assert facts["speculating"] is None and facts["deterministic"] is None  # it does not tell

    def test_text_that_round_trips_gives_the_ids_of_an_engine_that_has_them(self, references, target, bridge, report):
        """The same weights in float32: ids found from text are our argmax, or the reference says that it drifted."""
        kept = {name: done for name, done in references.items() if not done.drift}
        found = explain(target, {name: (bridge.prompt_ids(name), done.response_ids) for name, done in kept.items()})
        report("transformers-agreement", {"round_trip": f"{len(kept)}/{len(references)}", **found.to_dict()})
        assert kept
        assert found.agreement > 0.995

    @pytest.mark.parametrize("thinking", [True, False])
    def test_template_options_go_to_a_server_that_takes_no_other(self, thinking, server, source_at, bridge):
        turn = turn_for(bridge, "short-stop", template_kwargs={"enable_thinking": thinking})
        source = source_at(server)
        done = source.complete(turn)
        assert source.facts()["dialect"] == "chat+template"
        assert done.drift == ""  # both sides counted the same prompt tokens
        forgotten = source_at(server).complete(replace(turn, template_kwargs={}))
        assert ("prompt tokens" in forgotten.drift) is not thinking
