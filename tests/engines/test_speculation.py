"""Served against predicted: vLLM speculates with a trained DFlash drafter, and its counters are what we predict."""

from collections.abc import Iterator

import pytest

from engines.cases import DFLASH
from engines.servers import ENGINES, Server, serving

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def speculating(small_drafter) -> Iterator[Server]:
    with serving(ENGINES["vllm"], extra=DFLASH, label="dflash") as server:
        yield server


def test_the_counters_of_the_server_are_the_rounds_of_the_walk(speculating, tiny_run, report):
    """Both in float32 on the same text, so not only within an interval: prompt by prompt, rounds by rounds."""
    results, frozen = tiny_run(f"openai={speculating.url}")
    served = results["served"]
    prompts = {prompt["prompt_id"]: prompt for prompt in results["drafters"]["small"]["prompts"]}
    rows = {
        line["id"]: {
            "served_rounds": line["served"]["verify_steps"],
            "predicted_rounds": len(prompts[line["id"]]["emitted"]),
            "served_tokens": line["served"]["completion_tokens"] - 1,
            "predicted_tokens": sum(prompts[line["id"]]["emitted"]),
        }
        for line in frozen
        if line["served"]
    }
    report("vllm-served-against-predicted", {"served": served, "by_prompt": rows})
    assert all(line["engine"]["speculating"] is True for line in frozen)
    assert len(rows) >= len(frozen) - 1, "counters were dropped: did something else use the server?"
    predicted = served["predicted"]["small"]
    # Rounding may move single drafts where two logits nearly tie; a systematic difference would be larger.
    assert served["tau"] == pytest.approx(predicted["tau"], rel=0.02)
    differing = [name for name, row in rows.items() if row["served_rounds"] != row["predicted_rounds"]]
    assert len(differing) <= len(rows) // 5, differing
