"""Watching a folder of real checkpoints through a real drafter service that may load from it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import demo
from tauscope_client.cli import main as tauscope


@pytest.mark.slow
def test_checkpoints_of_both_formats_are_ranked_and_a_broken_one_is_named(
    tmp_path: Path, services: Any, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = tmp_path / "training"
    shutil.copytree(models / "drafter-b", training / "step-1000")
    shutil.copytree(models / "drafter-a", training / "step-10000")
    (training / "step-20000.pt").write_bytes(b"torn")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join((demo.DEMO / "prompts.jsonl").read_text().splitlines()[:3]))
    port = demo.free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [
        *("--target-url", services.target, "--target-model", str(models / "target")),
        *("--root", str(training), "--port", str(port), "--device", "cpu"),
    ]
    line = [
        *("watch", str(training), "--prompts", str(prompts), "--out", str(tmp_path / "board"), "--once"),
        *("--max-new-tokens", "32", "--poll-s", "0.1", "--target", services.target, "--drafter-url", url),
    ]
    with demo.service("tauscope-drafter", arguments, url=url, log_path=tmp_path / "drafter.log"):
        assert tauscope(line) == 5  # the torn checkpoint has no number
    entries = json.loads((tmp_path / "board" / "leaderboard.json").read_text())["entries"]
    assert [(entry["name"], bool(entry["failure"])) for entry in entries] == [
        ("step-1000", False),
        ("step-10000", False),
        ("step-20000", True),
    ]
    assert entries[1]["tau"] > entries[0]["tau"]
    assert "against step-1000" in entries[1]["against_best"]
    assert "step-20000" in capsys.readouterr().out
