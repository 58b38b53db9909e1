"""Hidden states against two independent implementations, layer by layer, and what the same request costs in each."""

import json
import time
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

from engines.layout import ENGINES as ENGINE_FOLDER
from engines.servers import ENGINES, serving
from tauscope_wire.connection import Connection
from tauscope_wire.messages import HiddenReceipt, HiddenRequest
from tauscope_wire.reader import read_hidden

pytestmark = pytest.mark.engines

TUPLE_IDS = [1, 9, 17, 25, 30]
"""As vLLM counts: id L is the output of decoder layer L - 1. The last is the last layer, before the final norm."""

OUTPUT_IDS = [0, 8, 16, 24, 29]
"""The same layers as this project counts."""

# Two float32 implementations of the same 30 layers; measured: 1e-6 of a plane's largest value. Ten times is allowed.
RELATIVE_TOLERANCE = 1e-5
REPEATS = 3


@pytest.fixture(scope="module")
def token_ids(bridge):
    """A prompt of about 180 tokens, long enough for bytes to matter and short enough for a loaded CPU."""
    return [token for name in ("fibonacci", "primes", "vowels", "reverse") for token in bridge.prompt_ids(name)]


def largest_difference(found, expected):
    """Largest absolute difference, as a share of the largest value of the plane."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def ours(target, token_ids, **fields):
    return target.hidden(HiddenRequest(token_ids=token_ids, dtype="float32", **fields)).states


@pytest.fixture(scope="module")
def vllm_states(smollm2, token_ids):
    """vLLM's `extract_hidden_states`: states [T, 5, 576] from the file it writes, and the cost of a request."""
    shared = ENGINE_FOLDER / "hidden-states"
    shared.mkdir(parents=True, exist_ok=True)
    extra = (
        "--speculative-config",
        json.dumps(
            {
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": TUPLE_IDS}},
            }
        ),
        "--kv-transfer-config",
        json.dumps(
            {
                "kv_connector": "CPUHiddenStatesConnector",
                "kv_connector_module_path": "cpu_hidden_states_connector",
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"shared_storage_path": str(shared)},
            }
        ),
    )
    with serving(ENGINES["vllm"], extra=("--no-enable-prefix-caching", *extra), label="states") as server:
        seconds, states, size = [], None, 0
        for asked in _variants(token_ids):
            began = time.perf_counter()
            answer = httpx.post(
                f"{server.url}/v1/completions",
                json={"model": "smollm2", "prompt": asked, "max_tokens": 1, "temperature": 0},
                timeout=600,
            )
            path = Path(answer.json()["kv_transfer_params"]["hidden_states_path"])
            found = _read_when_complete(path)
            seconds.append(time.perf_counter() - began)
            size = path.stat().st_size + len(answer.content)
            states = found["hidden_states"]
            assert found["token_ids"].tolist() == asked
            path.unlink()
        return states, {"bytes": size, "seconds": median(seconds[1:])}


def _variants(token_ids):
    """One request to warm up and `REPEATS` to time: another last token each, so that nothing comes from a cache."""
    return [[*token_ids[:-1], 100 + repeat] for repeat in range(REPEATS)] + [token_ids]


def _read_when_complete(path: Path) -> dict[str, np.ndarray]:
    """vLLM answers before its writer is done: read again until the file is whole."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return load_file(path)
        except Exception:
            if time.monotonic() > deadline:
                raise


@pytest.fixture(scope="module")
def sglang_states(token_ids):
    """SGLang's `return_hidden_states`: the last layer after the final norm, [T, 576], and the cost."""
    with serving(
        ENGINES["sglang"], extra=("--enable-return-hidden-states", "--disable-radix-cache"), label="states"
    ) as server:
        seconds, states, size = [], None, 0
        for asked in _variants(token_ids):
            began = time.perf_counter()
            answer = httpx.post(
                f"{server.url}/generate",
                json={
                    "input_ids": asked,
                    "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                    "return_hidden_states": True,
                },
                timeout=600,
            )
            rows = answer.json()["meta_info"]["hidden_states"][0]
            states = np.asarray(rows, dtype=np.float32)
            seconds.append(time.perf_counter() - began)
            size = len(answer.content)
        return states, {"bytes": size, "seconds": median(seconds[1:])}


def test_every_layer_equals_vllms_own_under_the_id_mapping(vllm_states, target, token_ids, report):
    theirs, _ = vllm_states
    mine = ours(target, token_ids, layers=OUTPUT_IDS)
    assert theirs.shape == (len(token_ids), len(TUPLE_IDS), 576)
    differences = {
        str(layer): largest_difference(mine[index], theirs[:, index].astype(np.float32))
        for index, layer in enumerate(OUTPUT_IDS)
    }
    scales = {str(layer): float(np.abs(mine[index]).max()) for index, layer in enumerate(OUTPUT_IDS)}
    report("vllm-layers", {"relative_difference": differences, "largest_value": scales, "tokens": len(token_ids)})
    assert max(differences.values()) < RELATIVE_TOLERANCE


def test_asked_in_vllms_own_convention_the_planes_are_the_same(target, token_ids):
    np.testing.assert_array_equal(
        ours(target, token_ids, layers=TUPLE_IDS, convention="tuple"), ours(target, token_ids, layers=OUTPUT_IDS)
    )


def test_an_offset_of_one_layer_would_not_go_unnoticed(vllm_states, target, token_ids):
    """The comparison can fail: the neighbouring layer is a hundred times further away than the tolerance, and more."""
    theirs, _ = vllm_states
    shifted = ours(target, token_ids, layers=[layer + 1 for layer in OUTPUT_IDS[:-1]])
    for index in range(len(OUTPUT_IDS) - 1):
        # One massive activation sets the scale of the middle layers, hence a hundred and not more.
        assert largest_difference(shifted[index], theirs[:, index].astype(np.float32)) > 100 * RELATIVE_TOLERANCE


def test_the_final_norm_plane_equals_sglangs_last_states(sglang_states, target, token_ids, report):
    theirs, _ = sglang_states
    mine = ours(target, token_ids, layers=[29], final_norm=True)
    assert theirs.shape == mine[1].shape
    difference = largest_difference(mine[1], theirs)
    report("sglang-final-norm", {"relative_difference": difference, "tokens": len(token_ids)})
    assert difference < RELATIVE_TOLERANCE
    assert largest_difference(mine[0], theirs) > 1000 * RELATIVE_TOLERANCE  # it is not the state before the norm


@pytest.fixture(scope="module")
def engine_costs(vllm_states, sglang_states):
    return {
        "vllm extract_hidden_states, 5 layers, float32 file": vllm_states[1],
        "sglang return_hidden_states, 1 layer after the norm, JSON": sglang_states[1],
    }


def test_what_the_same_request_costs_in_each(engine_costs, target, token_ids, report):
    """A table, no claim about seconds: bytes are exact, seconds are of a shared two-core machine."""
    rows = dict(engine_costs)
    with Connection(target.url) as connection:
        for name, fields in (
            ("tauscope, 5 layers, inline, float32", {"layers": OUTPUT_IDS, "dtype": "float32", "return_": "inline"}),
            ("tauscope, 5 layers, inline, bfloat16", {"layers": OUTPUT_IDS, "return_": "inline"}),
            ("tauscope, 1 layer after the norm, bfloat16", {"layers": [29], "final_norm": True, "return_": "inline"}),
            ("tauscope, 5 layers, by handle", {"layers": OUTPUT_IDS, "return_": "handle"}),
        ):
            rows[name] = _our_cost(connection, target, token_ids, fields)
    report("hidden-costs", {"tokens": len(token_ids), "rows": rows})
    values = len(token_ids) * 576
    assert rows["tauscope, 5 layers, inline, bfloat16"]["bytes"] < 1.01 * values * 5 * 2 + 4096
    assert rows["sglang return_hidden_states, 1 layer after the norm, JSON"]["bytes"] > 8 * values


def _our_cost(connection, target, token_ids, fields):
    seconds, size = [], 0
    for asked in _variants(token_ids):
        # Another dtype or set of layers is another handle, so no variant is answered from the store.
        request = HiddenRequest(token_ids=asked, **fields)
        began = time.perf_counter()
        if request.return_ == "handle":
            size = len(connection.post_json("/hidden_states", request, HiddenReceipt).model_dump_json())
        else:
            counted = _Counted()
            connection.post_tensors("/hidden_states", request, counted.read)
            size = counted.num_bytes
        seconds.append(time.perf_counter() - began)
    return {"bytes": size, "seconds": median(seconds[1:])}


class _Counted:
    """Counts the bytes that the reader takes."""

    def __init__(self):
        self.num_bytes = 0

    def read(self, source):
        self._source = source
        return read_hidden(self)

    def readinto(self, buffer):
        count = self._source.readinto(buffer)
        self.num_bytes += count
        return count
