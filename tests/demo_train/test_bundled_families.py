"""The drafter service against the networks that wrote the bundled EAGLE-3 and DSpark weights: two implementations of
each family, one on trained weights and real states.
"""

import json
from pathlib import Path

import pytest
import torch
from deploy.demo.train.answers import Answer, prefill
from deploy.demo.train.chat import MASK
from deploy.demo.train.evaluation import dspark_matches, eagle3_matches
from deploy.demo.train.networks.dspark import DSpark
from deploy.demo.train.networks.eagle3 import Eagle3
from deploy.demo.train.plans import full_plan
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.loading import load, open_place

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo"
MODELS = DEMO / "models"
PLAN = full_plan()
TEXTS = 4
LAYERS = (1, 3, 4, 5, 6)


@pytest.fixture(scope="module")
def target():
    return AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def texts(target):
    lines = [json.loads(line) for line in (DEMO / "references.jsonl").read_text().splitlines()]
    answers = [Answer([*t["prompt_ids"], *t["response_ids"]], len(t["prompt_ids"]), True) for t in lines[:TEXTS]]
    return prefill(target, answers, layers=LAYERS, width=max(len(answer.ids) for answer in answers))


def as_trained(family, embedding):
    """How many drafts match at given anchors, by the network of the training recipe with the bundled weights."""
    tensors = load_file(MODELS / f"drafter-{family}" / "model.safetensors")
    if family == "dspark":
        network = DSpark(embedding.shape[1], PLAN.dspark, mask_id=MASK, vocab=embedding.shape[0], rank=PLAN.markov_rank)
        network.load_state_dict(tensors)
        return dspark_matches(network.eval(), embedding)
    draft_ids = tensors.pop("d2t") + torch.arange(PLAN.draft_vocab)
    tensors.pop("t2d")
    network = Eagle3(embedding.shape[1], PLAN.eagle3, head=embedding[draft_ids])
    network.load_state_dict(tensors)
    return eagle3_matches(network.eval(), embedding, draft_ids)


@pytest.mark.parametrize(("family", "options"), [("dspark", {}), ("eagle3", {"block_size": PLAN.eagle3.block + 1})])
def test_a_bundled_drafter_accepts_at_every_anchor_what_its_training_network_accepts(family, options, target, texts):
    place = open_place(torch.device("cpu"), torch.float32, MODELS / "target")
    drafter = load(MODELS / f"drafter-{family}", LoadOptions(**options), place)
    match = as_trained(family, target.get_input_embeddings().weight.detach())
    total = differing = 0
    for row in range(TEXTS):
        start, stop = int(texts.prompt_tokens[row]), int(texts.total_tokens[row])
        anchors, ids = list(range(start, stop - 1)), texts.ids[row, :stop]
        states = texts.taps(drafter.spec.taps, slice(row, row + 1))[0, :stop]
        planes = states.view(stop, len(drafter.spec.taps), -1).transpose(0, 1)
        accepted = {}
        with torch.inference_mode():
            context = drafter.network.fuse(planes, ids)
            for labels in (False, True):
                drafts = drafter.network.draft(context, anchors, ids, top_k=1, labels=labels).token_ids
                accepted[labels] = matched(drafts, ids, anchors)
            trained = match(texts, slice(row, row + 1), torch.tensor([anchors]))[0]
        assert torch.equal(accepted[False], accepted[True])
        total += len(anchors)
        differing += int((accepted[False] != trained).sum())
    assert total > 100
    # float32 sums in another order: two best logits may swap where they are all but equal
    assert differing <= total // 100


def matched(drafts, ids, anchors):
    """Accepted drafts [A], token by token."""
    counts = []
    for row, p in zip(drafts.tolist(), anchors, strict=True):
        following = ids[p + 1 : p + 1 + len(row)].tolist()
        count = 0
        while count < len(following) and row[count] == following[count]:
            count += 1
        counts.append(count)
    return torch.tensor(counts)
