"""A real SGLang on a CPU serves SmolLM2; our target service holds the same weights."""

import pytest

from engines.asks import turn_for
from engines.claims import PATIENT, IdsEngine, all_at_once, port_of
from engines.environments import ENVIRONMENTS, versions
from engines.gateway import gateway
from engines.prompts import PROMPTS
from tauscope_wire.messages import GenerateRequest

pytestmark = pytest.mark.engines

ENGINE = "sglang"
NAMES = tuple(PROMPTS)[:5]


class TestSGLang(IdsEngine):
    """By `/generate`, `--reference sglang=URL`."""

    def test_the_server_is_recognised_with_version_model_and_what_it_does(self, server, source_at):
        facts = source_at(server, model="smollm2").facts()
        assert facts["kind"] == "sglang"
        assert facts["version"] == versions(ENVIRONMENTS["sglang"])["sglang"]
        assert facts["model"] == str(server.engine.model)
        assert facts["speculating"] is False and facts["deterministic"] is False
        assert facts["dtype"] == "float32" and facts["weight_version"]
        assert facts.get("revision") is None  # it was started from a folder, which has none

    def test_its_openai_routes_give_the_same_references(self, references, server, source_at, bridge):
        """`--reference openai=URL` works too: ids in and out, what the server is known by its model list."""
        source = source_at(server, is_openai=True)
        for name in ("short-stop", "fibonacci"):
            done = source.complete(turn_for(bridge, name, tail_tokens=8))
            assert done.drift == "" and done.response_ids == references[name].response_ids, name
        facts = source.facts()
        assert (facts["kind"], facts["returns_ids"], facts["model"]) == ("sglang", True, "smollm2")

    def test_a_full_queue_is_waited_out(self, server, source_at, bridge):
        """Four run and two wait; the others are refused with 503, real ones, and come again."""
        with gateway(port_of(server)) as door:
            source = source_at(server, url=door.url, retries=PATIENT)
            found = all_at_once(source, [turn_for(bridge, name, max_new_tokens=8) for name in PROMPTS])
        assert door.statuses[503] >= 1
        assert found.keys() == PROMPTS.keys()

    def test_our_own_greedy_decoding_gives_the_same_text(self, references, target, bridge):
        for name in NAMES[:2]:
            own = target.generate(GenerateRequest(token_ids=bridge.prompt_ids(name), max_new_tokens=96, deadline_s=600))
            assert own.token_ids == references[name].response_ids, name

    def test_evaluation_end_to_end_with_references_from_sglang(self, references, server, tiny_run, report):
        """`tauscope eval` word for word: references from SGLang, states and drafts from our services."""
        results, frozen = tiny_run(f"sglang={server.url}")
        overall = results["drafters"]["small"]["overall"]
        assert overall["values"]["agreement"] > 0.995
        assert {line["id"]: line["response_ids"] for line in frozen} == {
            name: done.response_ids for name, done in references.items()
        }
        report("sglang-eval", {"values": overall["values"], "counts": overall["counts"]})
