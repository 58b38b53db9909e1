"""A real llama.cpp server (llama-cpp-python) with the 4-bit file: another server, another arithmetic."""

import pytest

from engines.asks import turn_for
from engines.claims import AnyEngine
from engines.environments import ENVIRONMENTS, versions
from engines.margins import explain
from engines.prompts import PROMPTS

pytestmark = pytest.mark.engines

ENGINE = "llamacpp"
NAMES = tuple(PROMPTS)[:4]


class TestLlamaCpp(AnyEngine):
    """By `/v1/chat/completions`, `--reference openai=URL`.

    What it has read before decides where it goes on reading, and its 4-bit products differ with the number of tokens
    that are read at once: the same greedy request has more than one answer.
    """

    REPEATS = False

    def test_the_server_is_recognised_with_version_and_model(self, server, source_at, bridge):
        source = source_at(server)
        source.complete(turn_for(bridge, "short-stop", max_new_tokens=2))
        facts = source.facts()
        assert facts["kind"] == "llama-cpp-python"
        assert facts["version"] == versions(ENVIRONMENTS["llamacpp"])["llama-cpp-python"]
        assert (facts["model"], facts["dialect"], facts["returns_ids"]) == ("smollm2", "chat+options", False)
        assert facts["speculating"] is None and facts["deterministic"] is None  # it does not tell

    def test_references_come_as_text_and_the_agreement_shows_that_it_is_another_model(
        self, references, target, bridge, report
    ):
        """Computed from 4-bit blocks, greedy text is not what our service would say: the number says so."""
        kept = {name: one for name, one in references.items() if not one.drift}
        found = explain(target, {name: (bridge.prompt_ids(name), one.response_ids) for name, one in kept.items()})
        report("llamacpp-agreement", {"round_trip": f"{len(kept)}/{len(references)}", **found.to_dict()})
        assert kept
        assert 0.5 < found.agreement <= 1.0

    def test_what_was_asked_before_can_change_an_answer_and_asking_again_shows_it(
        self, server, source_at, bridge, report
    ):
        """The check that `tauscope eval` makes of two prompts by itself (`--check-references`)."""
        source = source_at(server)
        names = list(PROMPTS)[:4]
        first = {name: source.complete(turn_for(bridge, name, max_new_tokens=48)).response_ids for name in names}
        warm = {name: source.complete(turn_for(bridge, name, max_new_tokens=48)).response_ids for name in names[::-1]}
        report("llamacpp-repeats", {"asked": len(names), "same_text": sum(first[name] == warm[name] for name in names)})
        twice = [source.complete(turn_for(bridge, names[0], max_new_tokens=48)).response_ids for _ in range(2)]
        assert twice[0] == twice[1]  # asked twice in a row it repeats itself

    def test_template_options_that_it_does_not_know_are_noticed(self, server, source_at, bridge):
        """It ignores them, and renders the prompt to fewer tokens than the target service did."""
        turn = turn_for(bridge, "short-stop", template_kwargs={"enable_thinking": False})
        assert "prompt tokens" in source_at(server).complete(turn).drift
