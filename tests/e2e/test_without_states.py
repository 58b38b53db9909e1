"""Drafters that read no states, alone in an evaluation, through both real services."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import demo
from tauscope_client.addresses import Addresses
from tauscope_client.cli import main as tauscope
from tauscope_client.drafting import DraftPlan, Draftsman
from tauscope_client.references.record import Reference

DRAFTS = 5
LIMIT = 32
PROMPTS = 2


@pytest.fixture(scope="module")
def weightless(services: Any, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A drafter service that holds only prompt lookup and an oracle that is never wrong."""
    url = f"http://127.0.0.1:{demo.free_port()}"
    size = f"block_size={DRAFTS + 1}"
    arguments = [
        *("--target-url", services.target, "--target-model", str(models / "target"), "--device", "cpu"),
        *("--drafter", f"lookup=-,family=ngram,{size}", "--drafter", f"oracle=-,family=oracle,{size},noise=0"),
        *("--port", url.rpartition(":")[2]),
    ]
    log = tmp_path_factory.mktemp("weightless") / "drafter.log"
    with demo.service("tauscope-drafter", arguments, url=url, log_path=log) as running:
        yield running


def looked_up(known: list[int]) -> list[int]:
    """What followed the latest earlier occurrence of the longest of 3, 2, 1 last tokens, read on in the drafts."""
    for size in (3, 2, 1):
        starts = [i for i in range(len(known) - size) if known[i : i + size] == known[-size:]]
        if starts and size <= len(known):
            text = list(known)
            for _ in range(DRAFTS):
                text.append(text[starts[-1] + size + len(text) - len(known)])
            return text[len(known) :]
    return [known[-1]] * DRAFTS


def walk(prompt: list[int], response: list[int], *, knows_future: bool) -> list[int]:
    """Accepted drafts of every round of the serving walk."""
    text, anchor, accepted = [*prompt, *response], len(prompt), []
    while anchor < len(text) - 1:
        drafts = text[anchor + 1 : anchor + 1 + DRAFTS] if knows_future else looked_up(text[: anchor + 1])
        count = 0
        while count < min(DRAFTS, len(text) - 1 - anchor) and drafts[count] == text[anchor + 1 + count]:
            count += 1
        accepted.append(count)
        anchor += count + 1
    return accepted


def test_an_evaluation_of_nothing_but_weightless_drafters_walks_as_by_hand(
    tmp_path: Path, services: Any, weightless: str
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "run"
    prompts.write_text("\n".join((demo.DEMO / "prompts.jsonl").read_text().splitlines()[:PROMPTS]))
    words = ["eval", str(prompts), "--target", services.target, "--drafter-url", weightless, "--out", str(out)]
    words += ["--drafter", "lookup", "--drafter", "oracle", "--max-new-tokens", str(LIMIT), "--tail-tokens", "0"]
    assert tauscope(words) == 0
    results = json.loads((out / "results.json").read_text())
    frozen = {r["id"]: r for r in map(json.loads, (out / "references.jsonl").read_text().splitlines())}
    for name in ("lookup", "oracle"):
        found = results["drafters"][name]["prompts"]
        assert len(found) == PROMPTS
        for prompt in found:
            reference = frozen[prompt["prompt_id"]]
            by_hand = walk(reference["prompt_ids"], reference["response_ids"], knows_future=name == "oracle")
            assert prompt["accepted"] == by_hand, (name, prompt["prompt_id"])


def test_a_target_without_its_head_serves_them_too(services: Any, weightless: str) -> None:
    """Then not even logits are asked for: the request would be empty."""
    plan = DraftPlan(top_k=2, dtype="bfloat16", with_logits=False)
    line = json.loads((demo.DEMO / "references.jsonl").read_text().splitlines()[0])
    reference = Reference.model_validate(line)
    with Addresses(services.target, weightless, None).open_both() as (target, drafter):
        cards = drafter.info().drafters
        assert [card.name for card in cards] == ["lookup", "oracle"]
        job = Draftsman(target, drafter, plan).open(reference, cards)
        for card in cards:
            assert len(job.draft(card).anchors) == len(reference.response_ids) - 1
