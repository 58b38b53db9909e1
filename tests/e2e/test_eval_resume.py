"""The program against both real services: killed half-way and continued, and what users do wrong."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

import demo
from tauscope_client.cli import main as tauscope

LIMIT = 16


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join((demo.DEMO / "prompts.jsonl").read_text().splitlines()[:3]))
    return path


def line(prompts: Path, out: Path, services: Any) -> list[str]:
    return [
        *("eval", str(prompts), "--drafter", "trained", "--max-new-tokens", str(LIMIT), "--out", str(out)),
        *("--target", services.target, "--drafter-url", services.drafter, "--concurrency", "1"),
    ]


@pytest.mark.parametrize("stage", ["references", "drafts"])
def test_a_run_killed_half_way_is_continued_to_the_same_results(
    tmp_path: Path, prompts: Path, services: Any, stage: str
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert tauscope(line(prompts, whole, services)) == 0
    command = [sys.executable, "-m", "tauscope_client.cli", *line(prompts, out, services)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for said in process.stderr:
            if said.startswith(f"{stage}: 1/3"):
                process.kill()
                break
        process.wait(60)
    assert not (out / "results.json").exists()
    finished = (out / "references.jsonl").read_bytes()
    assert tauscope(line(prompts, out, services)) == 0
    assert (out / "references.jsonl").read_bytes().startswith(finished)
    results = [json.loads((folder / "results.json").read_text()) for folder in (whole, out)]
    assert results[0] == results[1]
    assert (out / "references.jsonl").read_bytes() == (whole / "references.jsonl").read_bytes()


def test_an_interrupt_ends_with_one_line_and_its_own_exit_code(tmp_path: Path, prompts: Path, services: Any) -> None:
    program = [sys.executable, "-m", "tauscope_client.cli", *line(prompts, tmp_path / "run", services)]
    command = ["env", "--default-signal=INT", *program]  # tests in the background of a shell ignore interrupts
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        said = []
        for text in process.stderr:
            said.append(text)
            if text.startswith("references: 1/3"):
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert said[-1].startswith("interrupted; what was finished is kept")
    assert not any("Traceback" in text for text in said)


def test_hidden_states_arrive_as_files_and_their_bfloat16_is_the_rounded_float32(
    tmp_path: Path, services: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["hidden", "--user", "Write a Python function.", "--layers", "6,-1", "--target", services.target]
    assert tauscope([*common, "--out", str(tmp_path / "half.safetensors")]) == 0
    assert tauscope([*common, "--out", str(tmp_path / "full.npz"), "--dtype", "float32"]) == 0
    assert tauscope([*common, "--out", str(tmp_path / "bits.npz"), "--npz-as", "uint16"]) == 0
    with np.load(tmp_path / "full.npz") as full, np.load(tmp_path / "bits.npz") as bits:
        for name in ("layer.6", "layer.-1"):
            rounded = full[name].astype(ml_dtypes.bfloat16)
            # Both answers come from passes of one prompt on a CPU in float32, which are equal bit for bit.
            assert np.array_equal(bits[name].view(ml_dtypes.bfloat16), rounded)
            with safe_open(tmp_path / "half.safetensors", "pt") as half:
                assert np.array_equal(half.get_tensor(name).float().numpy(), rounded.astype(np.float32))
    assert tauscope([*common[:3], "--layers", "70", *common[5:], "--out", str(tmp_path / "x.npz")]) == 2
    assert "layers[0]=70: the model has 8 decoder layers" in capsys.readouterr().err


def test_doctor_finds_both_services_well_and_tells_swapped_addresses(
    services: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tauscope(["doctor", "--target", services.target, "--drafter-url", services.drafter]) == 0
    assert "all well" in capsys.readouterr().out
    assert tauscope(["doctor", "--target", services.drafter, "--drafter-url", services.target]) == 4
    assert "the two addresses are swapped" in capsys.readouterr().out


def test_one_prompt_over_the_limit_leaves_the_others_evaluated(tmp_path: Path, prompts: Path, services: Any) -> None:
    long = {"id": "long", "text": "word " * 40_000}
    prompts.write_text(prompts.read_text().splitlines()[0] + "\n" + json.dumps(long) + "\n")
    assert tauscope(line(prompts, tmp_path / "run", services)) == 5
    (failure,) = json.loads((tmp_path / "run" / "failures.json").read_text())
    assert (failure["id"], failure["code"]) == ("long", "prompt_too_long")
