"""The text of every prompt with its rounds, as the page's script draws it when a prompt is opened."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tauscope_client.metrics.ranks import NOT_RANKED, label_ranks
from tauscope_client.runs.loading import Run

__all__ = ["embed_json", "prompt_payload"]


def prompt_payload(run: Run, turn_id: str, names: tuple[str, ...]) -> dict[str, Any]:
    """One prompt: pieces of text and, for each drafter, its rounds.

    A round is {a: anchor as response position, n: accepted, e: emitted, d: drafted texts, m: what stood in the row of
    the first miss, as [[text, probability], ..], r: place of the right token in it from 1, 0 when it is not there}.
    """
    reference = run.references[turn_id]
    total = len(reference.prompt_ids) + len(reference.response_ids)
    pieces = run.texts.get(turn_id)
    if pieces is None:
        pieces = [f"‹{token}›" for token in reference.token_ids()]
    vocabulary = run.pieces
    start = len(reference.prompt_ids)
    rounds = {prompt["prompt_id"]: prompt for name in names for prompt in run.results["drafters"][name]["prompts"]}
    return {
        "id": turn_id,
        "tags": dict(rounds[turn_id]["tags"]) if turn_id in rounds else {},
        "prompt": pieces[:start],
        "response": pieces[start:total],
        "finish": reference.finish_reason,
        "drifted": reference.drift if reference.drifted else "",
        "drafters": [_rounds(run, name, turn_id, vocabulary) for name in names],
    }


def _rounds(run: Run, name: str, turn_id: str, vocabulary: Mapping[int, str]) -> list[dict[str, Any]]:
    trace = run.trace(name, turn_id)
    prompt = run.prompt(name, turn_id)
    ranks = label_ranks(trace).ranks
    first = int(trace.anchors[0]) if trace.anchors.size else 0

    def text(token: int) -> str:
        return vocabulary.get(token, f"‹{token}›")

    found = []
    for anchor, accepted, emitted in zip(prompt["anchors"], prompt["accepted"], prompt["emitted"], strict=True):
        row = anchor - first
        entry: dict[str, Any] = {"a": anchor - trace.response_start, "n": accepted, "e": emitted}
        entry["d"] = [text(token) for token in trace.draft_ids[row].tolist()]
        if accepted < emitted and accepted < trace.num_drafts:
            probabilities = np.exp(trace.top_logprobs[row, accepted]).tolist()
            tokens = trace.top_ids[row, accepted].tolist()
            entry["m"] = [[text(token), round(p, 4)] for token, p in zip(tokens, probabilities, strict=True)]
            rank = int(ranks[row, accepted])
            entry["r"] = 0 if rank == NOT_RANKED else rank + 1
        found.append(entry)
    return found


def embed_json(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char, code in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(char, code)
    return text
