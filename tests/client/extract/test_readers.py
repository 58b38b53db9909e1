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
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import xxhash

import demo
from tauscope_client.cli import main
from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection
from tauscope_wire.messages import HiddenRequest

READERS = Path(__file__).with_name("readers")
REFERENCES = demo.DEMO / "references.jsonl"
TAPS = [1, 3, 5]

pytestmark = pytest.mark.slow


class Text(NamedTuple):
    """Ids, loss mask, and states [T, H]: taps, last layer before the final norm, and after it."""

    ids: list[int]
    mask: list[int]
    taps: list[Any]
    last: Any
    final: Any


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
    """What the service says itself."""
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
            found.append(Text(ids, mask, [planes[tap] for tap in TAPS], planes[last], planes["final_norm"]))
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


def check_states(found, planes, entry):
    """States [T, H] by plane are bit for bit those that came, and as close as can be to what is computed now."""
    states = np.asarray([np.asarray(plane, np.float32) for plane in found])
    sent = states.astype(ml_dtypes.bfloat16)
    assert xxhash.xxh3_128_hexdigest(sent.tobytes()) == entry["digest"]
    # Texts in one pass are computed with products of other shapes, whose float32 sums differ in the last bits: enough
    # to round to the neighbouring bfloat16, 2^-7 away.
    np.testing.assert_allclose(states, planes, rtol=2**-7, atol=1e-4)


def split(rows, num_planes):
    """[T, P*H] to P planes."""
    return np.split(np.asarray(rows, np.float32), num_planes, axis=-1)


def entries_of(folder):
    entries = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    return sorted(entries, key=lambda entry: entry["row"])


def test_speculators_reads_taps_and_the_last_layer_before_its_norm(target, expected, tmp_path):
    out = extracted(target, tmp_path / "out", "speculators")
    found = read_by("speculators", out)
    assert found["lengths"] == [len(text.ids) for text in expected]
    for sample, text, entry in zip(found["samples"], expected, entries_of(out), strict=True):
        assert (sample["input_ids"], sample["loss_mask"]) == (text.ids, text.mask)
        assert sample["dtype"] == "torch.bfloat16"
        check_states([*split(sample["taps"], 3), sample["last"]], [*text.taps, text.last], entry)
    assert found["batch"]["hidden_states"] == [1, 64, 3 * expected[0].last.shape[1]]


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
    out = extracted(target, tmp_path / "out", layout)
    found = read_by("specforge", out, layout)
    for sample, text, entry in zip(found["samples"], expected, entries_of(out), strict=True):
        assert sample["input_ids"] == [text.ids]
        # Its EAGLE-3 reader never counts the last token, which has no successor.
        assert sample["loss_mask"] == [[*text.mask[:-1], 0] if layout == "specforge" else text.mask]
        assert sample["dtypes"][taps_name] == "torch.bfloat16"
        states, planes = split(sample[taps_name][0], 3), list(text.taps)
        if final_name is not None:
            states, planes = [*states, sample[final_name][0]], [*planes, text.final]
        check_states(states, planes, entry)


def test_the_models_own_template_marks_what_the_assistant_says(target, tmp_path):
    talk = [("user", "Count to two."), ("assistant", "one, two"), ("user", "And then?"), ("assistant", "three")]
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"messages": [{"role": role, "content": content} for role, content in talk]}))
    line = ["extract", str(texts), "--out", str(tmp_path / "out"), "--layers", "1", "--target", target]
    assert main(line) == 0
    sample = json.loads((tmp_path / "out" / "samples.jsonl").read_text().splitlines()[0])
    with Connection(target) as connection:
        client = TargetClient(connection)
        stops = client.info().model.stop_token_ids
        said = [sample["token_ids"][start:stop] for start, stop in sample["spans"]]
        assert [client.decode(ids[:-1]).strip() for ids in said] == ["one, two", "three"]
    assert all(ids[-1] in stops for ids in said)
