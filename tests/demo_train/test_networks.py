"""The drafter networks see exactly what their families may see, and training unrolls equal drafting step by step."""

import pytest
import torch
import torch.nn.functional as F
from deploy.demo.train.networks.blocks import rotary, rotate
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.networks.dspark import DSpark
from deploy.demo.train.networks.eagle3 import Eagle3
from deploy.demo.train.settings import DrafterShape

HIDDEN, VOCAB, SEQ, ANCHOR = 16, 32, 12, 5
SHAPE = DrafterShape(layers=2, mlp=24, taps=(0, 2), heads=2, kv_heads=1, head_dim=8, block=4)
# float32 sums of a few dozen terms in another order
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def data():
    torch.manual_seed(3)
    embedding = torch.randn(VOCAB, HIDDEN)
    return embedding, torch.randn(1, SEQ, 3 * HIDDEN), torch.randint(0, VOCAB, (1, SEQ))


def dflash_rows(network, data, change=None):
    embedding, features, ids = data
    features = features[..., : 2 * HIDDEN].clone()
    if change is not None:
        features[0, change] += 1.0
    return network.eval()(embedding, features, ids, torch.tensor([[ANCHOR]]))[0, 0]


def test_dflash_context_ends_before_the_anchor(data):
    network = DFlash(HIDDEN, SHAPE, mask_id=1)
    base = dflash_rows(network, data)
    assert torch.equal(dflash_rows(network, data, ANCHOR), base)
    assert not torch.equal(dflash_rows(network, data, ANCHOR - 1), base)


def test_the_leaky_variant_sees_the_anchors_own_state_and_nothing_later(data):
    network = DFlash(HIDDEN, SHAPE, mask_id=1, sees_anchor=True)
    base = dflash_rows(network, data)
    assert not torch.equal(dflash_rows(network, data, ANCHOR), base)
    assert torch.equal(dflash_rows(network, data, ANCHOR + 1), base)


def test_dflash_blocks_of_other_anchors_do_not_mix(data):
    embedding, features, ids = data
    network = DFlash(HIDDEN, SHAPE, mask_id=1).eval()
    features = features[..., : 2 * HIDDEN]
    together = network(embedding, features, ids, torch.tensor([[3, 5, 8]]))
    for index, anchor in enumerate((3, 5, 8)):
        alone = network(embedding, features, ids, torch.tensor([[anchor]]))
        torch.testing.assert_close(together[:, index], alone[:, 0], **CLOSE)


def test_theta_changes_the_draft(data):
    torch.manual_seed(0)
    network = DFlash(HIDDEN, SHAPE, mask_id=1)
    base = dflash_rows(network, data)
    network.shape = DrafterShape(**{**SHAPE.__dict__, "theta": 1e4})
    assert not torch.equal(dflash_rows(network, data), base)


def test_dspark_logits_are_the_head_plus_the_bias_of_the_previous_token(data):
    embedding, features, ids = data
    network = DSpark(HIDDEN, SHAPE, mask_id=1, vocab=VOCAB, rank=3).eval()
    states = network(embedding, features[..., : 2 * HIDDEN], ids, torch.tensor([[ANCHOR]]))
    previous = ids[:, ANCHOR : ANCHOR + SHAPE.block][None]
    logits, confidence = network.heads(states, previous, embedding)
    for row in range(SHAPE.block):
        w1, w2 = network.markov_head.markov_w1.weight, network.markov_head.markov_w2.weight
        wanted = embedding @ states[0, 0, row] + w2 @ w1[ids[0, ANCHOR + row]]
        torch.testing.assert_close(logits[0, 0, row], wanted, **CLOSE)
    assert confidence.shape == (1, 1, SHAPE.block)


def eagle3_step_by_step(network, data, *, anchor, steps):
    """Draft states for one anchor the way serving does it: one slot at a time, keys kept, own output fed back."""
    embedding, features, ids = data
    layer, attention = network.midlayer, network.midlayer.self_attn
    keys, values, out, state = [], [], [], None
    for slot in range(anchor + steps - 1):
        state = network.fc(features[:, slot : slot + 1]) if slot < anchor else state
        words = layer.input_layernorm(F.embedding(ids[:, slot + 1 : slot + 2], embedding))
        pair = torch.cat((words, layer.hidden_norm(state)), -1)
        turns = rotary(torch.tensor([[slot]]), attention.head_dim, network.shape.theta, torch.float32)
        k, v = attention.keys_values(pair)
        keys.append(rotate(k, *turns))
        values.append(v)
        mask = torch.ones(1, 1, 1, len(keys), dtype=torch.bool)
        q = rotate(attention.queries(pair), *turns)
        x = state + attention.attend(q, torch.cat(keys, 2), torch.cat(values, 2), mask)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        if slot >= anchor - 1:
            out.append(network.norm(x)[0, 0])
            state = x
    return out


def test_eagle3_unrolled_training_equals_drafting_slot_by_slot(data):
    embedding, features, ids = data
    shape = DrafterShape(layers=1, mlp=24, taps=(0, 1, 2), heads=2, kv_heads=1, head_dim=8, block=3, theta=1e4)
    network = Eagle3(HIDDEN, shape, head=embedding[:20]).eval()
    unrolled = network(embedding, features, ids, shape.block)
    for anchor in (2, 5, 7):
        steps = eagle3_step_by_step(network, data, anchor=anchor, steps=shape.block)
        for unroll, wanted in enumerate(steps):
            torch.testing.assert_close(unrolled[unroll][0, anchor - 1 + unroll], wanted, **CLOSE)
