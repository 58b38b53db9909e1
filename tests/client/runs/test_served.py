"""Counters of a server that speculates, pooled beside the prediction for the same prompts."""

from types import SimpleNamespace

from tauscope_client.references.record import Reference, Served, ids_sha256
from tauscope_client.runs.served import served_beside_predicted, served_lines


def reference(name, served):
    return Reference(
        id=name,
        conversation=name,
        split="fresh",
        prompt_ids=[1, 2],
        prompt_sha256=ids_sha256([1, 2]),
        response_ids=[5] * 10,
        finish_reason="length",
        stop_token_ids=[0],
        max_new_tokens=10,
        source="sglang",
        engine={"kind": "sglang"},
        served=served,
    )


def prompt(name, emitted):
    return SimpleNamespace(prompt_id=name, ratios={}, walk=SimpleNamespace(num_rounds=len(emitted), emitted=emitted))


def test_only_prompts_with_counters_are_on_either_side():
    references = [
        reference("a", Served(completion_tokens=10, verify_steps=3)),
        reference("b", None),
        reference("c", Served(completion_tokens=5, verify_steps=4)),
    ]
    measured = {"small": [prompt("a", [4, 4, 1]), prompt("b", [9]), prompt("c", [1, 1, 1, 1])]}
    found = served_beside_predicted(references, measured)
    assert found == {
        "engine": "sglang",
        "num_prompts": 2,
        "verify_steps": 7,
        "tau": (9 + 4) / 7,  # the first token of each answer comes from prefill
        "predicted": {"small": {"tau": 13 / 7, "num_rounds": 7}},
    }
    (line,) = served_lines({"served": found})
    assert "tau 1.857 (7 rounds, 2 prompts)" in line and "small 1.857 (7 rounds)" in line


def test_without_counters_there_is_nothing_to_say():
    assert served_beside_predicted([reference("a", None)], {"small": [prompt("a", [2])]}) is None
    assert served_lines({"served": None}) == served_lines({}) == []
