"""The bundled drafters: real weights, both formats, shared tables."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.loading import Loaded, Place, load, open_place

MODELS = Path(__file__).resolve().parents[2] / "deploy" / "demo" / "models"
LENGTH = 60


@pytest.fixture(scope="module")
def place() -> Place:
    return open_place(torch.device("cpu"), torch.float32, MODELS / "target")


def drafts(drafter: Loaded) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    spec = drafter.spec
    states = torch.randn(len(spec.taps), LENGTH, spec.target_hidden_size, generator=generator)
    ids = torch.randint(4, spec.vocab_size, (LENGTH,), generator=generator)
    with torch.inference_mode():
        context = drafter.network.fuse(states, ids)
        found = drafter.network.draft(context, list(range(20, LENGTH)), ids, top_k=4)
    return found.top_ids, found.top_logprobs


def test_the_trained_drafter_loads_and_shares_the_tables_of_the_target(place: Place) -> None:
    drafter = load(MODELS / "drafter-a", LoadOptions(), place)
    config = json.loads((MODELS / "drafter-a" / "config.json").read_text())
    assert drafter.spec.taps == tuple(config["dflash_config"]["target_layer_ids"])
    assert (drafter.spec.block_size, drafter.spec.layout, drafter.spec.drafts) == (16, "fill-in", 15)
    assert drafter.from_target == ("embed_tokens", "lm_head")
    assert not drafter.spec.warnings
    assert drafter.memory_bytes == 4 * drafter.num_parameters


def test_a_training_checkpoint_drafts_as_the_folder_of_the_same_weights(place: Place, tmp_path: Path) -> None:
    path = MODELS / "drafter-b" / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    assert "optimizer_state_dict" in state
    weights = {n: t for n, t in state["model_state_dict"].items() if not n.startswith(("embed_tokens", "lm_head"))}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((MODELS / "drafter-b" / "config.json").read_text())
    from_pt, from_folder = load(path, LoadOptions(), place), load(tmp_path, LoadOptions(), place)
    assert (from_pt.spec.format, from_folder.spec.format) == ("training-checkpoint", "z-lab")
    assert from_pt.sha256 == from_folder.sha256
    for one, other in zip(drafts(from_pt), drafts(from_folder), strict=True):
        assert torch.equal(one, other)


def test_a_training_checkpoint_with_its_own_tables_needs_no_target(place: Place, tmp_path: Path) -> None:
    path = MODELS / "drafter-b" / "checkpoint.pt"
    tensors = dict(torch.load(path, weights_only=True)["model_state_dict"])
    tensors["embed_tokens.weight"] = tensors["lm_head.weight"] = place.embedding.table.clone()  # type: ignore[union-attr]
    tensors["verifier_lm_head.weight"] = torch.zeros_like(
        tensors["lm_head.weight"]
    )  # used in training only: must not be read
    torch.save({"model_state_dict": tensors, "optimizer_state_dict": {}, "step": 3}, tmp_path / "checkpoint.pt")
    plain = load(path, LoadOptions(), place)
    spec = plain.spec
    options = LoadOptions(
        block_size=16, taps=spec.taps, mask_token_id=spec.mask_token_id, rope_theta=spec.layers.rope.theta
    )
    alone = load(tmp_path / "checkpoint.pt", options, open_place(torch.device("cpu"), torch.float32, None))
    assert alone.from_target == ()
    for one, other in zip(drafts(alone), drafts(plain), strict=True):
        assert torch.equal(one, other)


def test_two_drafters_share_one_copy_of_the_tables(place: Place) -> None:
    first = load(MODELS / "drafter-a", LoadOptions(), place)
    second = load(MODELS / "drafter-b" / "checkpoint.pt", LoadOptions(), place)
    heads = [d.network._head.weight.data_ptr() for d in (first, second)]  # type: ignore[attr-defined]
    tables = [d.network._embedding.table.data_ptr() for d in (first, second)]  # type: ignore[attr-defined]
    assert len({*heads}) == len({*tables}) == 1
