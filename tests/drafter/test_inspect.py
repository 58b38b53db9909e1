"""`inspect` shows what can be known, also where the files leave something open, and says what must be given."""

import json
from pathlib import Path

import pytest
import torch

from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.report import inspected
from tauscope_drafter.cli import main
from tauscope_wire.errors import CheckpointError

OPEN = "not recorded: give "


def test_an_eagle_drafter_without_a_number_of_drafts_is_shown_but_for_that_number(tmp_path: Path) -> None:
    folder = drafters.write_eagle3(tmp_path / "d", "eagle")
    report = inspected(folder, LoadOptions(), None)
    complete = inspected(folder, LoadOptions(block_size=4), None)
    assert complete["must_be_given"] == []
    open_lines = {name for name, value in report.items() if value != complete[name]}
    assert open_lines == {"block_size", "drafts", "must_be_given", "loadable"}
    assert report["block_size"] == report["drafts"] == f"{OPEN}block_size=8"
    assert report["must_be_given"] == [
        "block_size=8 (how many tokens to draft (block_size is drafts + 1); the value is an example)"
    ]
    assert (report["loadable"], complete["loadable"]) == (False, True)


def test_a_bare_training_checkpoint_is_shown_but_for_the_facts_that_weights_do_not_hold(tmp_path: Path) -> None:
    folder = drafters.write_dflash(tmp_path / "d", "training-checkpoint")
    report = inspected(folder, LoadOptions(), None)
    assert (report["family"], report["format"]) == ("dflash", "training-checkpoint")
    assert report["layers"] == {"count": 2, "hidden": 32, "mlp": 48, "heads": 4, "kv_heads": 2, "head_dim": 8}
    assert {name for name, value in report.items() if str(value).startswith(OPEN)} == {
        "block_size",
        "drafts",
        "taps",
        "mask_token_id",
        "rope",
    }
    assert [line.partition("=")[0] for line in report["must_be_given"]] == [
        "rope_theta",
        "taps",
        "block_size",
        "mask_token_id",
    ]
    assert not report["tensors_missing"] and not report["loadable"]


def test_without_the_numbers_that_shapes_are_computed_from_the_tensors_themselves_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "eagle.pt"
    torch.save(drafters.eagle3_tensors(), path)
    report = inspected(path, LoadOptions(), None)
    assert report["family"] == "eagle3"
    assert report["must_be_given"][0].startswith("config=PATH (")
    assert "layers.0.self_attn.q_proj.weight [32, 64]" in report["tensors"]
    assert not report["loadable"]


def test_a_weightless_drafter_is_shown_with_its_target_and_without_a_number_of_drafts(tmp_path: Path) -> None:
    target = drafters.write_target(tmp_path / "target")
    arguments = ["inspect", "none", "--set", "family=ngram", "--target-model", str(target), "--json"]
    assert main(arguments) == 3
    assert main([*arguments, "--set", "block_size=5"]) == 0


def test_the_program_prints_what_must_be_given_and_exits_as_for_what_does_not_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = drafters.write_eagle3(tmp_path / "d", "eagle")
    assert main(["inspect", str(folder)]) == 3
    shown = capsys.readouterr().out
    assert "must be given      block_size=8" in shown
    assert main(["inspect", str(folder), "--set", "block_size=4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drafts"] == 3


def test_a_wrong_value_is_still_an_error_and_not_a_report(tmp_path: Path) -> None:
    folder = drafters.write_folder(tmp_path / "d", drafters.dflash_config(block_size=1), drafters.dflash_tensors())
    with pytest.raises(CheckpointError, match="block_size=1 is outside"):
        inspected(folder, LoadOptions(), None)
