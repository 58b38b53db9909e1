"""Served against predicted: vLLM speculates with a trained DFlash drafter, and its counters are what we predict."""

from collections.abc import Iterator

import pytest

from engines.groups import DFLASH
from engines.prompts import WALKED
from engines.servers import ENGINES, Server, serving

pytestmark = pytest.mark.engines

NAMES = WALKED


@pytest.fixture(scope="module")
def speculating(small_drafter) -> Iterator[Server]:
    with serving(ENGINES["vllm"], extra=DFLASH, label="dflash") as server:
        yield server


def test_the_counters_of_the_server_are_the_rounds_of_the_walk(speculating, tiny_run, report):
    """Both in float32 on the same text: pooled within the interval, and prompt by prompt within two rounds."""
    results, frozen = tiny_run(f"openai={speculating.url}")
    overall = results["drafters"]["small"]["overall"]
    prompts = {prompt["prompt_id"]: prompt for prompt in results["drafters"]["small"]["prompts"]}
    rows = {line["id"]: _row(line["served"], prompts[line["id"]]) for line in frozen if line["served"]}
    report(
        "vllm-served-against-predicted",
        {"served": results["served"], "interval": overall["intervals"]["tau"], "by_prompt": rows},
    )
    assert all(line["engine"]["speculating"] is True for line in frozen)
    assert len(rows) >= len(frozen) - 1, "counters were dropped: did something else use the server?"
    assert overall["intervals"]["tau"]["low"] <= results["served"]["tau"] <= overall["intervals"]["tau"]["high"]
    # Two implementations draft another token where two logits nearly tie; a wrong layer or position would change many.
    assert results["served"]["tau"] == pytest.approx(overall["values"]["tau"], rel=0.02)
    for name, row in rows.items():
        assert abs(row["served_rounds"] - row["predicted_rounds"]) <= 2, name
        assert row["served_tokens"] == row["predicted_tokens"], name


def _row(served, prompt):
    """Both sides of one prompt; histograms count rounds by accepted drafts."""
    accepted = prompt["accepted"]
    return {
        "served_rounds": served["verify_steps"],
        "predicted_rounds": len(accepted),
        "served_tokens": served["completion_tokens"] - 1,
        "predicted_tokens": sum(prompt["emitted"]),
        "served_histogram": served["histogram"],
        "predicted_histogram": [accepted.count(count) for count in range(len(served["histogram"]))],
    }
