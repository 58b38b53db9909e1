"""The recipe with toy sizes on a CPU: what it writes can be loaded, and a second run takes it up.

The hybrid pair is made in the fast suite; every phase, with the planted drafters, the other families and the
full-attention pair, in the slow one.
"""

import json
import tarfile
from dataclasses import replace

import pytest
import torch
from deploy.demo.train.phases import Recipe
from deploy.demo.train.plans import smoke_plan
from deploy.demo.train.prepare import load_dataset, prepare
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PLAN = replace(smoke_plan(), packages=("networkx", "sympy"), max_files=60)


def make(folder, **options):
    prepare(folder / "data", PLAN)
    lines = []
    assert Recipe(PLAN, folder, device="cpu", log=lines.append, **options).run(), "\n".join(lines)
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return make(tmp_path_factory.mktemp("pair"), only=("drafter", "evaluation"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    return make(folder, archive_to=folder / "parts" / "bundle.tar")


def test_the_target_loads_in_transformers_in_several_shards(work):
    model, info = AutoModelForCausalLM.from_pretrained(work / "bundle" / "target", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.generation_config.eos_token_id == [3, 0]
    assert len(list((work / "bundle" / "target").glob("model-*.safetensors"))) >= 2


def test_the_saved_chat_template_gives_the_ids_of_the_stored_prompts(work):
    tokenizer = AutoTokenizer.from_pretrained(work / "bundle" / "target")
    for line in (work / "bundle" / "prompts.jsonl").read_text().splitlines():
        prompt = json.loads(line)
        ids = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, return_dict=True)
        assert ids["input_ids"] == prompt["prompt_ids"]


def test_the_training_checkpoint_holds_the_early_state(work):
    folder = work / "bundle" / "drafter-b"
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(state["model_state_dict"][name], tensor)
    assert {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight"} <= set(state["model_state_dict"])
    assert state["optimizer_state_dict"]["state"]
    assert state["step"] >= 1


@pytest.mark.slow
def test_the_planted_drafter_claims_another_theta_than_it_was_trained_with(whole):
    config = json.loads((whole / "bundle" / "drafter-theta" / "config.json").read_text())
    assert config["rope_theta"] == 1e6


@pytest.mark.slow
def test_the_eagle3_tables_agree(whole):
    tensors = load_file(whole / "bundle" / "drafter-eagle3" / "model.safetensors")
    drafted = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    assert torch.equal(tensors["t2d"].nonzero().flatten(), drafted)


@pytest.mark.slow
def test_the_archive_in_parts_holds_the_bundle(whole, tmp_path):
    joined = tmp_path / "bundle.tar"
    joined.write_bytes(b"".join(part.read_bytes() for part in sorted((whole / "parts").glob("bundle.tar.*"))))
    with tarfile.open(joined) as tar:
        names = set(tar.getnames())
    assert {"bundle/target/config.json", "bundle/drafter-a/model.safetensors", "bundle/plain/eval.json"} <= names


@pytest.mark.slow
def test_the_card_names_the_packages_their_licences_and_every_drafter(whole):
    card = (whole / "bundle" / "README.md").read_text()
    for word in ("BSD-3-Clause", "networkx", "drafter-leak", "drafter-dspark", "drafter-eagle3", "Full-attention pair"):
        assert word in card


def test_heldout_pairs_come_from_other_files_than_training_pairs(work):
    data = load_dataset(work / "data")
    assert {i.user for i in data.train}.isdisjoint(i.user for i in data.heldout)


def test_a_second_run_trains_nothing_again(work):
    before = (work / "bundle" / "target" / "model.safetensors.index.json").stat().st_mtime_ns
    lines = []
    assert Recipe(PLAN, work, device="cpu", log=lines.append, only=("drafter", "evaluation")).run()
    assert (work / "bundle" / "target" / "model.safetensors.index.json").stat().st_mtime_ns == before
    assert any("saved by an earlier run" in line for line in lines)


def test_a_phase_that_does_not_exist_is_named(work):
    with pytest.raises(ValueError, match=r"only=\['nonsense'\]"):
        Recipe(PLAN, work, device="cpu", log=print, only=("nonsense",)).run()


def test_a_deadline_skips_phases_that_would_not_fit(work, tmp_path):
    lines = []
    plan = replace(PLAN, target_budget=replace(PLAN.target_budget, seconds=100.0))
    recipe = Recipe(plan, tmp_path, device="cpu", log=lines.append, deadline_s=50.0, only=("features",))
    prepared = work / "data"
    (tmp_path / "data").symlink_to(prepared)
    recipe.run()
    assert "skipped" in recipe.record["runs"][-1]["phases"]["target"]
    assert recipe.record["runs"][-1]["phases"]["features"]["skipped"].startswith("needs")
