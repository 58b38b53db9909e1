"""Counters of a server that speculates, pooled beside the prediction for the same prompts."""

from types import SimpleNamespace

from tauscope_client.metrics import Ratio
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


def prompt(name, emitted, *, narrow=None, unclipped=None):
    ratios = {} if unclipped is None else {"tau_unclipped": Ratio(unclipped, len(emitted))}
    by_width = () if narrow is None else (Ratio(sum(emitted), narrow), Ratio(sum(emitted), len(emitted)))
    walk = SimpleNamespace(num_rounds=len(emitted), emitted=emitted)
    return SimpleNamespace(prompt_id=name, ratios=ratios, by_width=by_width, walk=walk)


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
        "own": None,
        "width": None,
        "predicted": {"small": {"tau": 13 / 7, "num_rounds": 7, "tau_unclipped": None, "tau_at_width": None}},
    }
    (line,) = served_lines({"served": found})
    assert "tau 1.857 (7 rounds, 2 prompts)" in line and "small 1.857 (7 rounds)" in line


def test_prefill_token_width_and_clipping_explain_what_is_left_between_the_numbers():
    one = reference("a", Served(completion_tokens=10, verify_steps=6, accept_length=10 / 6))
    one = one.model_copy(update={"engine": {"kind": "sglang", "speculative_num_draft_tokens": 2}})
    measured = {"wide": [prompt("a", [4, 4, 1], narrow=6, unclipped=11)]}
    found = served_beside_predicted([one], measured)
    assert (found["width"], found["own"], found["tau"]) == (1, 10 / 6, 9 / 6)
    assert found["predicted"]["wide"]["tau_at_width"] == found["tau"]  # at the server's width nothing is left
    _, why = served_lines({"served": found})
    assert "own number is 1.667: it counts the first token, which comes from prefill" in why
    assert "verifies 1 drafts a step, fewer than the block of wide: predicted at that width 1.500" in why
    assert "wide not cut at the end of the text: 3.667" in why


def test_vllm_counts_before_the_text_is_cut_and_its_histogram_tells_the_width():
    counts = Served(completion_tokens=9, verify_steps=3, accept_length=3.0, histogram=[1, 1, 1])
    one = reference("a", counts).model_copy(update={"engine": {"kind": "vllm"}})
    found = served_beside_predicted([one], {"wide": [prompt("a", [4, 4], narrow=3)]})
    assert found["width"] == 2 and found["predicted"]["wide"]["tau_at_width"] is None  # the block is as narrow
    _, why = served_lines({"served": found})
    assert "own number is 3.000: it counts accepted drafts before the text is cut" in why


def test_without_counters_there_is_nothing_to_say():
    assert served_beside_predicted([reference("a", None)], {"small": [prompt("a", [2])]}) is None
    assert served_lines({"served": None}) == served_lines({}) == []
