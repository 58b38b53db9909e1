"""The layout probe, on drafters that are right in exactly one reading."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.contract import ProbeText, StatesArray
from tauscope_drafter.engine import Engine
from tauscope_drafter.layout_probe import Rates, decide
from tauscope_drafter.loading import open_place
from tauscope_wire.errors import CheckpointError, ErrorCode

VOCAB = drafters.HIDDEN  # orthogonal embeddings: token t is the t-th unit vector
MASK = 7


def successor(token: int) -> int:
    """The text counts upwards and leaves the mask id out."""
    following = (token + 1) % VOCAB
    return following if following != MASK else following + 1


def counting_tensors(sign: float) -> drafters.Tensors:
    """A drafter without training: one layer that adds `sign` times the mean embedding of the block to each row.

    The head reads `sign` times the embedding of the predecessor. With sign +1, row 0 is its own anchor and predicts
    the next token (anchor-first). With -1, row 0 has the anchor with the wrong sign, and the first row that predicts
    the next token is row 1, which has it from attention alone (1+N).
    """
    tensors = {name: torch.zeros_like(t) for name, t in drafters.dflash_tensors(layers=1).items()}
    eye = torch.eye(VOCAB)
    tensors |= {n: torch.ones_like(t) for n, t in tensors.items() if n.endswith("norm.weight")}
    at = "layers.0.self_attn"
    tensors[f"{at}.v_proj.weight"], tensors[f"{at}.o_proj.weight"] = eye, sign * eye
    tensors[f"{at}.k_proj.weight"] = torch.zeros(32, VOCAB)
    tensors["embed_tokens.weight"] = eye
    head = torch.zeros(VOCAB, VOCAB)
    for token in range(VOCAB):
        if token != MASK:
            head[successor(token)] = sign * eye[token]
    tensors["lm_head.weight"] = head
    if sign > 0:  # row 1 of the anchor-first drafter must not know the anchor
        tensors[f"{at}.o_proj.weight"] = torch.zeros(VOCAB, VOCAB)
    return tensors


def undecided(folder: Path, sign: float) -> Path:
    """A speculators DSpark folder without the flag: written with both layouts over time."""
    tensors = counting_tensors(sign) | {
        "markov_head.markov_w1.weight": torch.zeros(VOCAB, 2),
        "markov_head.markov_w2.weight": torch.zeros(VOCAB, 2),
    }
    config = drafters.dflash_config(1, vocab_size=VOCAB, num_key_value_heads=4)
    own = {
        "speculators_model_type": "dspark",
        "transformer_layer_config": {k: v for k, v in config.items() if k not in ("dflash_config", "block_size")},
        "block_size": 4,
        "draft_vocab_size": VOCAB,
        "aux_hidden_state_layer_ids": [2, 4, 5],
        "mask_token_id": MASK,
        "markov_rank": 2,
        "markov_head_type": "vanilla",
    }
    return drafters.write_folder(folder, own, tensors)


def counting_texts(taps: object) -> list[ProbeText]:
    tokens = [0]
    while len(tokens) < 70:
        tokens.append(successor(tokens[-1]))
    states = np.random.default_rng(0).standard_normal((3, 70, drafters.HIDDEN)).astype(np.float32)
    return [ProbeText(token_ids=np.array(tokens), start=3, states=StatesArray(states=states))]


@pytest.mark.parametrize(("sign", "layout", "drafts"), [(1.0, "anchor-first", 4), (-1.0, "fill-in", 3)])
def test_a_layout_that_is_not_recorded_is_measured(tmp_path: Path, sign: float, layout: str, drafts: int) -> None:
    engine = Engine(open_place(torch.device("cpu"), torch.float32, None), probe_source=counting_texts)
    card = engine.load("x", undecided(tmp_path / "d", sign), LoadOptions(), roots=None)
    assert (card.layout, card.drafts) == (layout, drafts)
    assert any("was measured" in w and "anchors" in w for w in card.warnings)


def test_without_a_target_to_measure_with_the_choices_are_listed(tmp_path: Path) -> None:
    engine = Engine(open_place(torch.device("cpu"), torch.float32, None))
    with pytest.raises(CheckpointError, match="layout=fill-in or layout=anchor-first") as caught:
        engine.load("x", undecided(tmp_path / "d", 1.0), LoadOptions(), roots=None)
    assert caught.value.code is ErrorCode.CHECKPOINT_AMBIGUOUS
    card = engine.load("x", undecided(tmp_path / "e", 1.0), LoadOptions(layout="anchor-first"), roots=None)
    assert card.layout == "anchor-first"


@pytest.mark.parametrize("rates", [Rates(0.5, 0.4, 100), Rates(0.1, 0.01, 100), Rates(0.9, 0.0, 20)])
def test_an_unclear_measurement_is_an_error_with_its_numbers(rates: Rates) -> None:
    with pytest.raises(CheckpointError, match="no clear answer") as caught:
        decide(rates, "file")
    assert caught.value.details["anchors"] == rates.num_anchors
