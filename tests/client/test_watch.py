"""Watching a training run: finished checkpoints are evaluated once, ranked, and compared with the best before them."""

import json

import pytest

from kit.client import table_services
from tauscope_client.cli import main
from tauscope_client.evaluate import EvalSettings
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import load_prompts
from tauscope_client.references.collect import ReferencePlan
from tauscope_client.watch.checkpoints import find_checkpoints, finished
from tauscope_client.watch.watching import Watch, WatchSettings


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "training"
    path.mkdir()
    return path


def test_checkpoints_are_found_by_step_and_half_written_ones_wait(folder):
    (folder / "step-200.pt").write_text("1")
    (folder / "step-1000.pt").write_text("0")
    (folder / ".step-3.pt").write_text("hidden")
    (folder / "log.txt").write_text("no weights")
    (folder / "epoch 2").mkdir()
    (folder / "epoch 2" / "model.safetensors").write_text("x")
    before = find_checkpoints(folder)
    assert [(one.name, one.step) for one in before] == [("epoch-2", 2), ("step-200", 200), ("step-1000", 1000)]
    (folder / "step-1000.pt").write_text("growing")
    now = find_checkpoints(folder)
    assert [one.name for one in finished({one.name: one for one in before}, now)] == ["epoch-2", "step-200"]


def watch_line(both, folder, prompts_path, tmp_path):
    return [
        *("watch", str(folder), "--prompts", str(prompts_path), "--out", str(tmp_path / "board"), "--once"),
        *("--max-new-tokens", "40", "--poll-s", "0.1", "--target", both.target_url, "--drafter-url", both.drafter_url),
    ]


def test_every_checkpoint_is_evaluated_once_on_the_same_frozen_text(folder, prompts_path, tmp_path, capsys):
    (folder / "step-1.pt").write_text("1")
    (folder / "step-2.pt").write_text("0")
    (folder / "step-3.pt").write_text("torn")
    with table_services(drafter={"salts": {"standing": 3}}) as both:
        line = watch_line(both, folder, prompts_path, tmp_path)
        assert main(line) == 5  # one checkpoint could not be loaded
        assert both.ledger.count("generate") == 3
        asked = len(both.ledger.calls)
        assert main(line) == 0  # nothing is new
        assert len(both.ledger.calls) == asked
        (folder / "step-3.pt").write_text("2")
        assert main(line) == 0
        assert both.ledger.count("generate") == 3
        with both.addresses().open_both() as (_, drafter):
            assert [card.name for card in drafter.info().drafters] == ["standing"]
    entries = json.loads((tmp_path / "board" / "leaderboard.json").read_text())["entries"]
    assert {entry["name"]: bool(entry["failure"]) for entry in entries} == dict.fromkeys(
        ("step-1", "step-2", "step-3"), False
    )
    for entry in entries:
        results = json.loads((tmp_path / "board" / entry["run"] / "results.json").read_text())
        assert entry["tau"] == results["drafters"][entry["name"]]["overall"]["values"]["tau"]
    assert "against step-" in entries[-1]["against_best"]
    board = (tmp_path / "board" / "leaderboard.md").read_text()
    taus = [float(row.split("|")[3]) for row in board.splitlines()[4:]]
    assert taus == sorted(taus, reverse=True)
    assert "<svg" in (tmp_path / "board" / "curve.html").read_text()
    assert "not a number" in capsys.readouterr().out


def test_a_checkpoint_that_is_still_written_is_looked_at_again(services, folder, prompts_path, tmp_path):
    (folder / "step-1.pt").write_text("1")
    looks = []

    def write_while_waiting(_):
        looks.append(len(looks))
        if len(looks) < 3:
            (folder / "step-1.pt").write_text("1" * (len(looks) + 1))

    plan = ReferencePlan(max_new_tokens=40, tail_tokens=0)
    references = tmp_path / "refs.jsonl"
    urls = ["--target", services.target_url]
    assert main(["references", str(prompts_path), "--max-new-tokens", "40", "-o", str(references), *urls]) == 0
    settings = WatchSettings(
        folder=folder,
        out=tmp_path / "board",
        service_folder=None,
        options={},
        evaluation=EvalSettings(drafters=(), references=plan, tree_budgets=(), passed={}),
        poll_s=1.0,
    )
    with services.addresses().open_both() as (target, drafter):
        watch = Watch(
            settings,
            load_prompts(prompts_path),
            target=target,
            drafter=drafter,
            references=references,
            progress=SilentProgress(),
            sleep=write_while_waiting,
        )
        entries = list(watch.run(once=True))
    assert [entry.name for entry in entries] == ["step-1"] and len(looks) == 3


def test_a_folder_that_is_not_there_and_a_malformed_option_are_told(services, folder, prompts_path, tmp_path, capsys):
    line = watch_line(services, folder / "none", prompts_path, tmp_path)
    assert main(line) == 2
    assert "no such folder to watch" in capsys.readouterr().err
    assert main([*watch_line(services, folder, prompts_path, tmp_path), "--option", "block_size"]) == 2
    assert "expected KEY=VALUE" in capsys.readouterr().err
