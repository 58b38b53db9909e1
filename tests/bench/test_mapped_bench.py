"""States of a handle mapped from the target's file against the same states over HTTP on loopback, on this CPU.

Prints a ratio, asserts no time. Both ways verify their checksums; they take turns, so other load hits both.
"""

import json
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from kit.models import tiny_qwen3
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.states import StatesSource
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.settings import TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_wire.connection import Connection
from tauscope_wire.messages import DrafterCard, HiddenReceipt, HiddenRequest

TOKENS, HIDDEN, ROUNDS = 2048, 1024, 9
TAPS = [0, 1, 2, 3, 4]


def card_of(vocab_size: int) -> DrafterCard:
    """A drafter that reads all taps; only its shape matters."""
    return DrafterCard(
        name="d",
        family="dflash",
        format="-",
        block_size=4,
        layout="fill-in",
        drafts=3,
        taps=TAPS,
        mask_token_id=7,
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        vocab_size=vocab_size,
        sha256="",
        path="",
        num_parameters=0,
        memory_bytes=0,
    )


@pytest.mark.bench
def test_mapped_states_against_the_same_over_http(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    engine = start_engine(EngineSettings(tiny_qwen3(tmp_path / "target", hidden_size=HIDDEN), "cpu"))
    card = card_of(engine.facts.model.vocab_size)
    ids = np.random.default_rng(0).integers(4, card.vocab_size, TOKENS).tolist()
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS), store_dir="auto")
    with running(create_app(engine, None, settings)) as url, Connection(url) as upstream:
        asked = HiddenRequest(token_ids=ids, layers=TAPS, dtype="bfloat16", return_="handle")
        handle = upstream.post_json("/hidden_states", asked, HiddenReceipt).handle
        sources = {"mapped": StatesSource(upstream), "http": StatesSource(upstream, mapping=False)}
        found = {way: source.fetch(handle, card, ids, TOKENS) for way, source in sources.items()}
        assert {way: states.way for way, states in found.items()} == {"mapped": "mapped", "http": "http"}
        np.testing.assert_array_equal(found["mapped"].states.view(np.uint16), found["http"].states.view(np.uint16))
        seconds: dict[str, list[float]] = {way: [] for way in sources}
        for _ in range(ROUNDS):
            for way, source in sources.items():
                begun = time.perf_counter()
                source.fetch(handle, card, ids, TOKENS)
                seconds[way].append(time.perf_counter() - begun)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    report = {
        "payload_mb": round(found["http"].states.nbytes / 1e6, 1),
        "threads": torch.get_num_threads(),
        "mapped_s": round(medians["mapped"], 4),
        "http_s": round(medians["http"], 4),
        "ratio": round(medians["mapped"] / medians["http"], 3),
    }
    with capsys.disabled():
        print(f"\nstates of a handle, mapped against HTTP: {json.dumps(report)}")
