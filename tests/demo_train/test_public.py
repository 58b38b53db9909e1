"""A drafter for a public target: a few steps on a tiny Llama, and what happens to prompts, masks and interruptions."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from deploy.demo.train.answer_store import load_answers
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.public.__main__ import main
from deploy.demo.train.public.prompts import BUNDLED, read_prompts
from deploy.demo.train.public.settings import default_taps
from deploy.demo.train.settings import DrafterShape
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from kit.models import IM_END, MASK, tiny_llama
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.loading import load, open_place

SHAPE = DrafterShape(layers=1, mlp=32, taps=(1, 4), heads=2, kv_heads=1, head_dim=16, block=4)
SIZES = (
    *("--layers", "1", "--mlp", "32", "--heads", "2", "--kv-heads", "1", "--head-dim", "16", "--block", "4"),
    *("--taps", "1", "4", "--sequences", "2", "--anchors", "3", "--max-new-tokens", "12", "--negatives", "20"),
)


def train(target, out, prompts, *extra, steps=6):
    arguments = ["--target", target, "--out", out, "--prompts", prompts, *SIZES, "--steps", steps, *extra]
    return main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("target") / "tiny-llama")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"split": "train", "text": f"say {word}"} for word in ("one", "two", "three")]
    lines.append({"split": "fresh", "text": "say four"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def drafter(target, prompts, tmp_path_factory):
    out = tmp_path_factory.mktemp("drafter") / "out"
    assert train(target, out, prompts) == 0
    return out


def test_the_answers_are_the_targets_own_greedy_ones(drafter, target):
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    for answer in load_answers(drafter / "work" / "answers.npz"):
        ids = answer.ids[: answer.prompt_tokens]
        while len(ids) < len(answer.ids):  # no cache: one forward a token
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
        assert ids == answer.ids


def test_the_files_say_what_was_trained(drafter):
    config = json.loads((drafter / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {"target_layer_ids": [1, 4], "mask_token_id": MASK}
    assert (config["vocab_size"], config["num_target_layers"], config["eos_token_id"]) == (320, 6, IM_END)
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 1e6
    tensors = load_file(drafter / "model.safetensors")
    DFlash(64, SHAPE, mask_id=MASK).load_state_dict(tensors)
    assert {t.dtype for t in tensors.values()} == {torch.float32}


def test_tau_is_that_of_a_walk_with_the_targets_own_head(drafter, target):
    """The target's head is not tied, so a walk that scored with the embedding would find another tau."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    network = DFlash(64, SHAPE, mask_id=MASK)
    network.load_state_dict(load_file(drafter / "model.safetensors"))
    network.eval()
    emitted = []
    for answer in load_answers(drafter / "work" / "answers.npz")[:3]:
        ids = torch.tensor([answer.ids])
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states  # entry k + 1 is the output of layer k
            features = torch.cat([hidden[tap + 1] for tap in SHAPE.taps], -1)
            at = answer.prompt_tokens
            while at < len(answer.ids) - 1:
                rows = network(model.get_input_embeddings().weight, features, ids, torch.tensor([[at]]))[0, 0, 1:]
                drafts = F.linear(rows, model.lm_head.weight).argmax(-1).tolist()
                following = answer.ids[at + 1 : at + 1 + len(drafts)]
                matches = 0
                while matches < len(following) and drafts[matches] == following[matches]:
                    matches += 1
                emitted.append(min(matches + 1, len(answer.ids) - 1 - at))
                at += emitted[-1]
    found = json.loads((drafter / "run.json").read_text())["tau"]["trained on"]
    assert (found["rounds"], found["emitted"]) == (len(emitted), sum(emitted))


def test_the_drafter_service_drafts_what_the_recipe_drafts(drafter, target):
    """Two implementations of the network over the same file, with an untied head."""
    place = open_place(torch.device("cpu"), torch.float32, target)
    served = load(drafter, LoadOptions(), place)
    assert (served.spec.taps, served.spec.block_size, served.spec.warnings) == (SHAPE.taps, SHAPE.block, ())
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    network = DFlash(64, SHAPE, mask_id=MASK)
    network.load_state_dict(load_file(drafter / "model.safetensors"))
    ids, anchors = load_answers(drafter / "work" / "answers.npz")[0].ids, [3, 8, 20]
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        taps = [hidden[tap + 1][0] for tap in SHAPE.taps]
        context = served.network.fuse(torch.stack(taps), torch.tensor(ids))
        found = served.network.draft(context, anchors, torch.tensor(ids), top_k=1).top_ids[..., 0]
        table = model.get_input_embeddings().weight
        rows = network.eval()(table, torch.cat(taps, -1)[None], torch.tensor([ids]), torch.tensor([anchors]))
        wanted = F.linear(rows[0, :, 1:], model.lm_head.weight).argmax(-1)
    assert torch.equal(found, wanted)


def test_the_card_says_data_tau_and_how_it_was_made(drafter):
    card = (drafter / "README.md").read_text()
    record = json.loads((drafter / "run.json").read_text())
    assert "prompts trained on" in card
    assert "prompts held out" in card
    assert record["prompts"]["sha256"] in card
    assert f"torch {torch.__version__}" in card.replace("`", "")
    assert "python -m deploy.demo.train.public --target tiny-llama --out out --prompts prompts.jsonl " in card
    assert str(drafter.parent) not in card


def test_a_finished_drafter_is_not_trained_again(drafter, target, prompts, capsys):
    before = (drafter / "model.safetensors").stat().st_mtime_ns
    assert train(target, drafter, prompts) == 0
    assert (drafter / "model.safetensors").stat().st_mtime_ns == before
    assert "holds a finished drafter" in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_answers_and_refuses_other_settings(drafter, target, prompts, tmp_path, capsys):
    out = tmp_path / "interrupted"
    shutil.copytree(drafter / "work", out / "work")
    assert train(target, out, prompts, steps=7) == 1
    assert "give another --out" in capsys.readouterr().err
    assert train(target, out, prompts) == 0
    assert "4 of 4 answers are there from an earlier run" in capsys.readouterr().out
    again, once = (load_file(folder / "model.safetensors") for folder in (out, drafter))
    # The same seed and data on the same machine: nothing but the state of the generator decides the batches.
    assert all(torch.equal(again[name], once[name]) for name in once)


def test_a_tap_beyond_the_target_is_refused(target, prompts, tmp_path, capsys):
    assert train(target, tmp_path / "out", prompts, "--taps", "1", "6") == 1
    assert "taps=[1, 6]: the target has 6 layers (0..5)" in capsys.readouterr().err


def test_default_taps_are_z_labs():
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)
    assert default_taps(32, 5) == (1, 8, 15, 22, 29)
    assert default_taps(30, 1) == (15,)
    assert all(0 <= tap < 2 for tap in default_taps(2, 3))


def test_without_splits_the_last_tenth_is_held_out(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": f"prompt {n}"}) + "\n" for n in range(20)))
    found = read_prompts(path)
    assert [m[0]["content"] for m in found.heldout] == ["prompt 18", "prompt 19"]
    assert len(found.train) == 18


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"messages": []}', '{"messages": [{"role": "user"}]}'])
def test_a_line_that_is_no_prompt_is_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"prompts\.jsonl, line 2: "):
        read_prompts(path)


def test_the_bundled_prompts_have_both_splits_and_no_repetition():
    found = read_prompts(BUNDLED)
    texts = [messages[0]["content"] for messages in (*found.train, *found.heldout)]
    assert len(texts) == len(set(texts))
    assert (len(found.train), len(found.heldout)) == (40, 8)
