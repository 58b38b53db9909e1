"""The target service end to end against the same extraction in process, on this CPU with the bundled model.

Prints a ratio, asserts no time. Both sides run the same number of tokens in turns, so other load hits both.
"""

import json
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kit.serve import SMALL_LIMITS, running
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.settings import TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_wire.connection import Connection
from tauscope_wire.messages import HiddenRequest
from tauscope_wire.reader import read_hidden

MODEL = Path(__file__).resolve().parents[2] / "deploy" / "demo" / "models" / "target"
TAPS = (1, 3, 4, 5, 6)
TOKENS, ROUNDS = 2000, 5


@pytest.mark.bench
def test_the_service_against_the_same_extraction_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    engine = start_engine(EngineSettings(MODEL, "cpu", allow_reference_kernels=True))
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(4, 4096, TOKENS)
    model.config.num_hidden_layers = TAPS[-1] + 1  # the same work by hand: hooks on layers, no layer above, no head
    caught: dict[int, torch.Tensor] = {}
    for tap in TAPS:
        model.model.layers[tap].register_forward_hook(lambda m, a, out, tap=tap: caught.__setitem__(tap, out))

    def in_process() -> np.ndarray:
        with torch.inference_mode():
            model.model(input_ids=torch.from_numpy(ids)[None], use_cache=False)
        return torch.stack([caught[tap][0] for tap in TAPS]).to(torch.bfloat16).float().numpy()

    request = HiddenRequest(token_ids=ids.tolist(), layers=list(TAPS))
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS))
    seconds: dict[str, list[float]] = {"in_process": [], "service": []}
    with running(create_app(engine, None, settings)) as url, Connection(url) as connection:

        def by_service() -> np.ndarray:
            answer = connection.post_tensors("/hidden_states", request, read_hidden)
            assert answer.states is not None
            return answer.states

        np.testing.assert_array_equal(by_service().astype(np.float32), in_process())
        for _ in range(ROUNDS):
            for name, run in (("in_process", in_process), ("service", by_service)):
                begun = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    report = {
        "tokens": TOKENS,
        "taps": TAPS,
        "threads": torch.get_num_threads(),
        "in_process_s": round(medians["in_process"], 4),
        "service_s": round(medians["service"], 4),
        "ratio": round(medians["service"] / medians["in_process"], 3),
    }
    with capsys.disabled():
        print(f"\ntarget service end to end: {json.dumps(report)}")
