"""The bundled DSpark and EAGLE-3 drafters, trained weights, through both real services."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demo
from tauscope_client.addresses import Addresses
from tauscope_client.cli import main as tauscope
from tauscope_client.references.record import Reference
from tauscope_wire.messages import DraftRequest, HiddenByHandle, HiddenRequest

EAGLE_DRAFTS = 6  # as trained; EAGLE-3 files do not say how many
REFERENCES = demo.DEMO / "references.jsonl"


@pytest.fixture(scope="module")
def drafter_url(services: Any, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"http://127.0.0.1:{demo.free_port()}"
    arguments = [
        *("--target-url", services.target, "--target-model", str(models / "target"), "--device", "cpu"),
        *("--drafter", f"dspark={models / 'drafter-dspark'}"),
        *("--drafter", f"eagle3={models / 'drafter-eagle3'},block_size={EAGLE_DRAFTS + 1}"),
        *("--port", url.rpartition(":")[2]),
    ]
    log = tmp_path_factory.mktemp("families") / "drafter.log"
    with demo.service("tauscope-drafter", arguments, url=url, log_path=log) as running:
        yield running


def accepted(drafts: Any, ids: list[int], anchors: list[int]) -> list[int]:
    counts = []
    for row, p in zip(drafts.tolist(), anchors, strict=True):
        count = 0
        while count < min(len(row), len(ids) - 1 - p) and row[count] == ids[p + 1 + count]:
            count += 1
        counts.append(count)
    return counts


@pytest.mark.slow
def test_accepted_is_the_same_free_running_and_following_labels_on_trained_weights(
    services: Any, drafter_url: str
) -> None:
    longest = dict.fromkeys(("dspark", "eagle3"), 0)
    with Addresses(services.target, drafter_url, None).open_both() as (target, drafter):
        for line in REFERENCES.read_text().splitlines():
            reference = Reference.model_validate_json(line)
            ids = reference.token_ids()
            handle = target.hidden_handle(HiddenRequest(token_ids=ids, layers=[1, 3, 4, 5, 6])).handle
            for name in longest:
                answers = [
                    drafter.draft(
                        DraftRequest(
                            drafter=name,
                            hidden=HiddenByHandle(handle=handle),
                            token_ids=ids,
                            response_start=len(reference.prompt_ids),
                            top_k=4,
                            labels=labels,
                        )
                    )
                    for labels in (False, True)
                ]
                free, forced = (accepted(a.token_ids, ids, a.anchors.tolist()) for a in answers)
                assert free == forced, (name, reference.id)
                assert not np.array_equal(answers[0].token_ids, answers[1].token_ids)  # after a miss they part
                longest[name] = max(longest[name], *free)
    assert longest == {"dspark": 7, "eagle3": EAGLE_DRAFTS}  # whole blocks occur, or this would show little


@pytest.mark.slow
def test_tau_of_the_demo_prompts_agrees_with_that_of_the_model_card(
    services: Any, drafter_url: str, models: Path, tmp_path: Path
) -> None:
    """The card's tau is of 256 other prompts: it must lie in the interval that ten prompts give, which is wide."""
    words = [
        "eval",
        str(demo.DEMO / "prompts.jsonl"),
        "--reference",
        f"file={REFERENCES}",
        "--out",
        str(tmp_path / "r"),
    ]
    words += ["--target", services.target, "--drafter-url", drafter_url, "--drafter", "dspark", "--drafter", "eagle3"]
    assert tauscope(words) == 0
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    card = (models / "README.md").read_text()
    for name in ("dspark", "eagle3"):
        said = re.search(rf"`drafter-{name}` \| (\d\.\d+) \(", card)
        assert said is not None
        found = results["drafters"][name]["overall"]["intervals"]["tau"]
        assert found["low"] <= float(said[1]) <= found["high"], (name, found)
