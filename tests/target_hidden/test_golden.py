"""Golden captures: what they hold, and that they are written whole."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from kit.engine import Checkpoint, Reference, Start, job, results
from tauscope_target.cli import main
from tauscope_target.golden import golden_prompts, write_golden
from tauscope_wire.errors import RequestError


def test_the_command_writes_states_argmax_and_fingerprint(
    checkpoint: Checkpoint, reference: Reference, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "golden.safetensors"
    arguments = ["--model", str(checkpoint("hybrid")), "--out", str(out), "--layers", "-1,1,6", "--device", "cpu"]
    assert main(["golden", *arguments, "--allow-reference-kernels"], environ={}) == 0, capsys.readouterr().err
    with safe_open(out, framework="pt") as file:
        metadata = file.metadata()
        facts = json.loads(metadata["facts"])
        assert metadata["schema"] == "tauscope.golden/1"
        assert facts["layers"] == [-1, 1, 6]
        assert facts["numerics"]["linear_attention"] == "torch-reference"
        assert facts["prompts"] == 4
        for index in range(4):
            ids = file.get_tensor(f"prompt.{index}.token_ids").long()
            states = file.get_tensor(f"prompt.{index}.states")
            with torch.no_grad():
                own = reference("hybrid")(ids[None], output_hidden_states=True)
            for plane, layer in enumerate(facts["layers"]):
                torch.testing.assert_close(states[plane], own.hidden_states[layer + 1][0], rtol=0, atol=0)
            assert torch.equal(file.get_tensor(f"prompt.{index}.argmax_ids").long(), own.logits[0].argmax(-1))


def test_a_checkpoint_without_tokenizer_gets_the_same_random_prompts_every_time(start: Start, tmp_path: Path) -> None:
    prompts = golden_prompts(None, 320)
    assert all(np.array_equal(a, b) for a, b in zip(prompts, golden_prompts(None, 320), strict=True))
    write_golden(start("llama"), prompts, tmp_path / "g.safetensors", layers=[5])
    with safe_open(tmp_path / "g.safetensors", framework="np") as file:
        (expected,) = results(start("llama"), [job(prompts[0], (5,))])
        np.testing.assert_array_equal(file.get_tensor("prompt.0.states"), expected.states)


def test_a_layer_that_is_not_loaded_leaves_no_file(start: Start, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"\[1\]=6"):
        write_golden(start("llama"), golden_prompts(None, 320), tmp_path / "g.safetensors", layers=[1, 6])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_found_before_the_model_is_loaded(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["golden", "--model", str(checkpoint("llama")), "--out", str(tmp_path / "none" / "g.safetensors")]
    assert main(arguments, environ={}) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layers", "words"),
    [("1,x", "give numbers"), ("1,6", "[1]=6: the model has 6"), ("-2", "[0]=-2"), ("1,1", "twice")],
)
def test_wrong_layers_are_found_before_the_model_is_loaded(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str], layers: str, words: str
) -> None:
    out = tmp_path / "g.safetensors"
    assert (
        main(["golden", "--model", str(checkpoint("llama")), "--out", str(out), f"--layers={layers}"], environ={}) == 2
    )
    said = capsys.readouterr().err
    assert words in said
    assert "loading" not in said
    assert not out.exists()
