"""Evaluation given frozen references against a real speculative loop over the same prompts, on this CPU.

The loop is a fair one: keys, values and recurrent state of the target are cached. A hybrid's state cannot be rolled
back, so each round verifies on a copy and feeds the accepted tokens to the original. The evaluation goes through both
services over HTTP, as `tauscope eval` does: two texts in flight, so that the target computes the states of one while
the drafter drafts another; beside it one request at a time. Loop and services have one thread each: the loop is one
process, the services are two. Prints ratios and tau of both, asserts no time.
"""

import copy
import inspect
import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import demo
from bench.drafter_loop import OneAnchorLoop
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.loading import load, open_place
from tauscope_wire.connection import Connection
from tauscope_wire.messages import DraftRequest, HiddenByHandle, HiddenReceipt, HiddenRequest
from tauscope_wire.reader import read_draft

DRAFTERS = {"trained": "drafter-a", "early": "drafter-b/checkpoint.pt"}
TAPS = (1, 3, 4, 5, 6)
# Handles of texts seen before are answered from the store: each run asks for the planes in another order.
ORDERS = {
    1: ((3, 1, 4, 5, 6), (4, 3, 1, 5, 6), (5, 3, 4, 1, 6)),
    2: ((6, 3, 4, 5, 1), (1, 4, 3, 5, 6), (1, 5, 4, 3, 6)),
}
"""Texts in flight (`tauscope eval` has two) -> orders."""
CAPACITY = 512


class CachedTarget:
    """The target with a cache, and hooks on the tapped layers."""

    def __init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(demo.MODELS / "target", dtype=torch.float32).eval()
        self.caught: dict[int, Tensor] = {}
        for tap in TAPS:
            self.model.model.layers[tap].register_forward_hook(
                lambda module, inputs, out, tap=tap: self.caught.__setitem__(tap, out)
            )
        # the name of the argument has changed between versions of the library
        names = inspect.signature(self.model.forward).parameters
        self.argument = "cache" if "cache" in names else "past_key_values"
        self.cache: Any = None

    def start(self) -> None:
        self.cache = None

    def feed(self, tokens: Sequence[int], *, keep: bool) -> tuple[list[int], Tensor]:
        """Choices after each token and states [P, n, H]; the cache advances only if kept."""
        cache = self.cache if keep else copy.deepcopy(self.cache)
        out = self.model(torch.tensor([list(tokens)]), use_cache=True, **{self.argument: cache})
        if keep:
            self.cache = out.get(self.argument) or out.past_key_values
        states = torch.stack([self.caught[tap][0] for tap in TAPS])
        return out.logits[0].argmax(-1).tolist(), states


def speculate(target: CachedTarget, drafter: OneAnchorLoop, prompt: list[int], *, limit: int, stops: set[int]) -> int:
    """Rounds that the loop needs for one prompt."""
    target.start()
    drafter.length = 0
    choices, states = target.feed(prompt, keep=True)
    drafter.append(states)
    tokens, rounds = [choices[-1]], 0
    while len(tokens) < limit and tokens[-1] not in stops:
        block = [tokens[-1], *drafter.draft(tokens[-1], 1)[0][:, 0].tolist()]
        choices, _ = target.feed(block, keep=False)
        accepted = 0
        while accepted + 1 < len(block) and block[accepted + 1] == choices[accepted]:
            accepted += 1
        _, states = target.feed(block[: accepted + 1], keep=True)
        drafter.append(states)
        new = [*block[1 : accepted + 1], choices[accepted]][: limit - len(tokens)]
        cut = next((i + 1 for i, token in enumerate(new) if token in stops), len(new))
        tokens += new[:cut]
        rounds += 1
    return rounds


def walk_rounds(drafts: np.ndarray, response: list[int]) -> int:
    """Rounds of the serving walk over frozen tokens; drafts [A, K], row i of the anchor at response index i."""
    index = rounds = 0
    while index + 1 < len(response):
        labels = response[index + 1 : index + 1 + drafts.shape[1]]
        accepted = 0
        while accepted < len(labels) and drafts[index, accepted] == labels[accepted]:
            accepted += 1
        index += min(accepted + 1, len(response) - 1 - index)
        rounds += 1
    return rounds


@pytest.mark.bench
def test_evaluation_of_frozen_references_against_a_real_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)  # as the services of the demo run
    references = [json.loads(line) for line in (demo.DEMO / "references.jsonl").read_text().splitlines()]
    place = open_place(torch.device("cpu"), torch.float32, demo.MODELS / "target")
    assert place.embedding is not None
    assert place.head is not None
    report: dict[str, Any] = {"prompts": len(references)}
    with ExitStack() as stack, torch.inference_mode():
        urls = [stack.enter_context(service) for service in demo.services(tmp_path)]
        target_service, drafter_service = (stack.enter_context(Connection(url)) for url in urls)
        run_eval(target_service, drafter_service, references, taps=TAPS, in_flight=1)  # warms everything up
        evaluated: dict[int, dict[str, float]] = {}
        for in_flight, orders in ORDERS.items():
            runs = [
                run_eval(target_service, drafter_service, references, taps=order, in_flight=in_flight)
                for order in orders
            ]
            evaluated[in_flight] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        target = CachedTarget()
        stops = set(target.model.generation_config.eos_token_id)
        emitted = sum(len(r["response_ids"]) - 1 for r in references)
        for name, path in DRAFTERS.items():
            drafter = load(demo.MODELS / path, LoadOptions(), place)
            weights = drafter.network._w  # type: ignore[attr-defined]
            loop = OneAnchorLoop(drafter.spec, weights, place.embedding.table, place.head.weight, capacity=CAPACITY)
            first = references[0]["prompt_ids"]
            speculate(target, loop, first, limit=8, stops=stops)
            started = time.perf_counter()
            rounds = [
                speculate(target, loop, r["prompt_ids"], limit=len(r["response_ids"]), stops=stops) for r in references
            ]
            loop_s = time.perf_counter() - started
            as_eval, one_at_a_time = (evaluated[in_flight][f"{name}_s"] for in_flight in (2, 1))
            report[name] = {
                "loop_s": round(loop_s, 2),
                "evaluation_s": round(as_eval, 2),
                "ratio": round(loop_s / as_eval, 1),
                "ratio_one_request_at_a_time": round(loop_s / one_at_a_time, 1),
                "tau_loop": round(emitted / sum(rounds), 3),
                "tau_evaluation": round(emitted / evaluated[2][f"{name}_rounds"], 3),
            }
    with capsys.disabled():
        print("\nevaluation against a speculative loop (the first drafter pays for the states):", json.dumps(report))


def run_eval(
    target: Connection, drafter: Connection, references: list[dict[str, Any]], *, taps: Sequence[int], in_flight: int
) -> dict[str, float]:
    """States of all texts by handle, and drafts at all anchors for each drafter; seconds and rounds.

    The first drafter's time includes the states.
    """
    handles: dict[int, str] = {}

    def states(index: int) -> None:
        r = references[index]
        request = HiddenRequest(
            token_ids=r["prompt_ids"] + r["response_ids"], layers=list(taps), dtype="float32", **{"return": "handle"}
        )
        handles[index] = target.post_json("/hidden_states", request, HiddenReceipt).handle

    def rounds(index: int, name: str) -> int:
        r = references[index]
        if index not in handles:
            states(index)
        request = DraftRequest(
            drafter=name,
            hidden=HiddenByHandle(handle=handles[index]),
            token_ids=r["prompt_ids"] + r["response_ids"],
            response_start=len(r["prompt_ids"]),
            top_k=8,
        )
        answer = drafter.post_tensors("/draft_block", request, read_draft)
        return walk_rounds(answer.token_ids, r["response_ids"])

    found: dict[str, float] = {}
    with ThreadPoolExecutor(in_flight) as threads:
        for name in DRAFTERS:
            started = time.perf_counter()
            found[f"{name}_rounds"] = sum(threads.map(partial(rounds, name=name), range(len(references))))
            found[f"{name}_s"] = time.perf_counter() - started
    return found
