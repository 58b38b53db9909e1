"""The training programs' own readers load what was extracted from a real target service.

They live in an environment of their own: TAUSCOPE_READERS_PYTHON names its Python (docs/extract-hidden-states.md says
how it is made). The extraction is killed once on the way.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import demo
from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection
from tauscope_wire.messages import HiddenRequest

READERS = Path(__file__).with_name("readers")
REFERENCES = demo.DEMO / "references.jsonl"
TAPS = [1, 3, 5]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    port = demo.free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [
        *("--model", str(demo.MODELS / "target")),
        *("--port", str(port), "--device", "cpu", "--allow-reference-kernels"),
    ]
    log = tmp_path_factory.mktemp("log") / "target.log"
    with demo.service("tauscope-target", arguments, url=url, log_path=log):
        yield url


@pytest.fixture(scope="module")
def expected(target):
    """What the service says itself: ids, loss mask, taps [T, P*H], last layer before and after the final norm."""
    found = []
    with Connection(target) as connection:
        client = TargetClient(connection)
        last = client.info().model.num_layers - 1
        for line in REFERENCES.read_text().splitlines():
            row = json.loads(line)
            ids = row["prompt_ids"] + row["response_ids"]
            answer = client.hidden(HiddenRequest(token_ids=ids, layers=[*TAPS, last], final_norm=True))
            planes = {name: answer.plane(name).astype(np.float32) for name in answer.planes}
            mask = [0] * len(row["prompt_ids"]) + [1] * len(row["response_ids"])
            taps = np.concatenate([planes[tap] for tap in TAPS], axis=1)
            found.append((ids, mask, taps, planes[last], planes["final_norm"]))
    return found


def command(target, out, layout):
    return [
        *(sys.executable, "-m", "tauscope_client.cli", "extract", str(REFERENCES), "--out", str(out)),
        *("--layout", layout, "--layers", "1,3,5", "--concurrency", "2", "--target", target),
    ]


def extracted(target, out, layout):
    """An extraction that is killed after its first sample, and the one that goes on."""
    with subprocess.Popen(command(target, out, layout), stderr=subprocess.PIPE, text=True) as process:
        assert any(line.startswith("extract: ") for line in process.stderr)
        process.send_signal(signal.SIGKILL)
    subprocess.run(command(target, out, layout), check=True, capture_output=True)
    rows = [json.loads(line)["row"] for line in (out / "index.jsonl").read_text().splitlines()]
    assert sorted(rows) == list(range(10))
    return out


def read_by(package, *arguments):
    python = os.environ.get("TAUSCOPE_READERS_PYTHON")
    if python is None:
        pytest.skip("TAUSCOPE_READERS_PYTHON names no Python with speculators and SpecForge")
    probe = subprocess.run([python, "-c", f"import {package}"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"{python} has no {package}")
    script = READERS / f"read_{package}.py"
    done = subprocess.run([python, "-W", "ignore", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_speculators_reads_taps_and_the_last_layer_before_its_norm(target, expected, tmp_path):
    found = read_by("speculators", extracted(target, tmp_path / "out", "speculators"))
    assert found["lengths"] == [len(ids) for ids, *_ in expected]
    for sample, (ids, mask, taps, last, _) in zip(found["samples"], expected, strict=True):
        assert (sample["input_ids"], sample["loss_mask"]) == (ids, mask)
        assert sample["dtype"] == "torch.bfloat16"
        # Equal to the bit: a CPU computes a sequence the same way whatever is computed beside it.
        assert sample["taps"] == taps.tolist() and sample["last"] == last.tolist()
    hidden = expected[0][3].shape[1]
    assert found["batch"]["hidden_states"] == [1, 64, 3 * hidden]


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("specforge", ("hidden_state", "target")),
        ("specforge-dflash", ("hidden_states", None)),
        ("specforge-dspark", ("hidden_states", "target_last_hidden_states")),
    ],
)
def test_specforge_reads_taps_and_the_normed_last_states(target, expected, tmp_path, layout, names):
    taps_name, final_name = names
    found = read_by("specforge", extracted(target, tmp_path / "out", layout), layout)
    for sample, (ids, mask, taps, _, final) in zip(found["samples"], expected, strict=True):
        assert sample["input_ids"] == [ids]
        # Its EAGLE-3 reader never counts the last token, which has no successor.
        assert sample["loss_mask"] == [[*mask[:-1], 0] if layout == "specforge" else mask]
        assert sample[taps_name] == [taps.tolist()]
        assert final_name is None or sample[final_name] == [final.tolist()]
