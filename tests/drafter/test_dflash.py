"""The DFlash network against a slow reference, and the properties that make it a drafter."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from drafter import reference
from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.loading import Loaded, Place, load, open_place

# float32 through two layers against float64: a few hundred roundings of 6e-8, on values of order one
FLOAT32 = {"rtol": 2e-4, "atol": 2e-4}
ANCHORS = [1, 2, 9, 22, 23]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    target = drafters.write_target(tmp_path_factory.mktemp("target"))
    return open_place(torch.device("cpu"), torch.float32, target)


def loaded(folder: Path, place: Place, layers: int = 2, **changes: object) -> Loaded:
    config = drafters.dflash_config(layers, **changes)
    return load(drafters.write_folder(folder, config, drafters.dflash_tensors(layers=layers)), LoadOptions(), place)


def draft(drafter: Loaded, states: Tensor, ids: Tensor, anchors: list[int], top_k: int = 5) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        context = drafter.network.fuse(states, ids)
        drafts = drafter.network.draft(context, anchors, ids, top_k=top_k)
    return drafts.top_ids, drafts.top_logprobs


def expected(config: dict[str, object], p: int, top_k: int = 5, **how: object) -> tuple[Tensor, Tensor]:
    states, ids = drafters.random_sequence()
    tables = drafters.shared_tables()
    layers = config["num_hidden_layers"]
    rows = reference.dflash_block(
        drafters.dflash_tensors(layers=layers), config, states, ids, p, embedding=tables["embed_tokens.weight"], **how
    )
    logprobs = reference.log_softmax(rows[1:] @ tables["lm_head.weight"].double().T)
    best = [reference.ranked(row, top_k) for row in logprobs]
    return torch.stack([b[0] for b in best]), torch.stack([b[1] for b in best])


def assert_matches(drafter: Loaded, config: dict[str, object], **how: object) -> None:
    states, ids = drafters.random_sequence()
    top_ids, top_logprobs = draft(drafter, states, ids, ANCHORS)
    for row, p in enumerate(ANCHORS):
        want_ids, want_logprobs = expected(config, p, **how)
        torch.testing.assert_close(top_logprobs[row].double(), want_logprobs, **FLOAT32)
        assert torch.equal(top_ids[row], want_ids)


def test_a_batch_of_anchors_drafts_what_the_slow_reference_drafts_one_by_one(tmp_path: Path, place: Place) -> None:
    assert_matches(loaded(tmp_path / "d", place), drafters.dflash_config())


@pytest.mark.parametrize("non_causal", [False, True])
@pytest.mark.parametrize("window", [2, 10])
def test_sliding_layers_see_what_an_explicit_mask_allows(
    tmp_path: Path, place: Place, window: int, non_causal: bool
) -> None:
    changes = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": window}
    if non_causal:
        changes["is_causal"] = False
    drafter = loaded(tmp_path / "d", place, **changes)

    def at(p: int) -> object:
        def sees(layer: int, i: int, key: int, in_block: int) -> bool:
            if layer == 1:
                return True
            distance = p + i - key
            return distance < window and (-distance < window if non_causal else distance >= 0)

        return sees

    states, ids = drafters.random_sequence()
    _, top_logprobs = draft(drafter, states, ids, ANCHORS)
    for row, p in enumerate(ANCHORS):
        _, want = expected(drafters.dflash_config(**changes), p, sees=at(p))
        torch.testing.assert_close(top_logprobs[row].double(), want, **FLOAT32)


def test_many_anchors_at_once_equal_one_at_a_time(tmp_path: Path, place: Place) -> None:
    drafter = loaded(tmp_path / "d", place)
    states, ids = drafters.random_sequence(120)
    anchors = list(range(1, 120))
    top_ids, top_logprobs = draft(drafter, states, ids, anchors)
    for p in anchors:
        alone_ids, alone_logprobs = draft(drafter, states, ids, [p])
        assert torch.equal(alone_ids[0], top_ids[p - 1])
        # the order of float32 sums differs between a batch and one anchor
        torch.testing.assert_close(alone_logprobs[0], top_logprobs[p - 1], rtol=1e-4, atol=1e-4)


def test_a_context_that_grows_drafts_as_one_computed_at_once(tmp_path: Path, place: Place) -> None:
    drafter = loaded(tmp_path / "d", place)
    states, ids = drafters.random_sequence()
    with torch.inference_mode():
        whole = drafter.network.fuse(states, ids)
        for p in (1, 8, 20):
            until = drafter.network.fuse(states[:, :p], ids)
            for (key, value), (all_keys, all_values) in zip(until.layers, whole.layers, strict=True):
                # one product over 20 rows or over 24: the kernel may sum in another order
                torch.testing.assert_close(key, all_keys[:, :p], rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(value, all_values[:, :p], rtol=1e-5, atol=1e-5)
            incremental = drafter.network.draft(until, [p], ids, top_k=5)
            recomputed = drafter.network.draft(whole, [p], ids, top_k=5)
            torch.testing.assert_close(incremental.top_logprobs, recomputed.top_logprobs, rtol=1e-5, atol=1e-5)


def test_the_state_at_the_anchor_is_not_read_and_the_one_before_is(tmp_path: Path, place: Place) -> None:
    drafter = loaded(tmp_path / "d", place)
    states, ids = drafters.random_sequence()
    p = 20
    _, before = draft(drafter, states, ids, [p])
    at_anchor, one_earlier = states.clone(), states.clone()
    at_anchor[:, p:] += 1.0
    one_earlier[:, p - 1] += 1.0
    assert torch.equal(draft(drafter, at_anchor, ids, [p])[1], before)
    assert not torch.equal(draft(drafter, one_earlier, ids, [p])[1], before)


def test_tokens_after_the_anchor_are_not_read(tmp_path: Path, place: Place) -> None:
    drafter = loaded(tmp_path / "d", place)
    states, ids = drafters.random_sequence()
    _, before = draft(drafter, states, ids, [20])
    later, anchor = ids.clone(), ids.clone()
    later[21:] = (later[21:] + 1) % drafters.VOCAB
    anchor[20] = (anchor[20] + 1) % drafters.VOCAB
    assert torch.equal(draft(drafter, states, later, [20])[1], before)
    assert not torch.equal(draft(drafter, states, anchor, [20])[1], before)


def test_theta_changes_the_drafts_and_the_order_of_taps_matters(tmp_path: Path, place: Place) -> None:
    states, ids = drafters.random_sequence()
    _, plain = draft(loaded(tmp_path / "a", place), states, ids, [22])
    _, other = draft(loaded(tmp_path / "b", place, rope_theta=1e6), states, ids, [22])
    assert not torch.allclose(plain, other, rtol=1e-4, atol=1e-4)
    _, swapped = draft(loaded(tmp_path / "c", place), states.flip(0), ids, [22])
    assert not torch.allclose(plain, swapped, rtol=1e-4, atol=1e-4)


def test_anchor_first_reads_row_zero_as_well(tmp_path: Path, place: Place) -> None:
    states, ids = drafters.random_sequence()
    fill_in, _ = draft(loaded(tmp_path / "a", place), states, ids, ANCHORS)
    anchor_first, _ = draft(loaded(tmp_path / "b", place, sample_from_anchor=True), states, ids, ANCHORS)
    assert fill_in.shape[1] == drafters.BLOCK - 1
    assert anchor_first.shape[1] == drafters.BLOCK
    assert torch.equal(anchor_first[:, 1:], fill_in)


def test_scales_of_embedding_and_logits_are_applied(tmp_path: Path, place: Place) -> None:
    nested = {"target_layer_ids": list(drafters.TAPS), "mask_token_id": drafters.MASK}
    nested |= {"input_embedding_scale": 2.5, "output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    config = drafters.dflash_config(dflash_config=nested)
    drafter = loaded(tmp_path / "d", place, dflash_config=nested)
    states, ids = drafters.random_sequence()
    _, got = draft(drafter, states, ids, [12])
    tables = drafters.shared_tables()
    rows = reference.dflash_block(
        drafters.dflash_tensors(), config, states, ids, 12, embedding=2.5 * tables["embed_tokens.weight"].double()
    )
    logits = 3.0 * torch.tanh(rows[1:] @ tables["lm_head.weight"].double().T * 0.5 / 3.0)
    want = torch.stack([reference.ranked(row, 5)[1] for row in reference.log_softmax(logits)])
    torch.testing.assert_close(got[0].double(), want, **FLOAT32)


def test_attention_bias_is_read_when_the_file_has_it(tmp_path: Path, place: Place) -> None:
    tensors = drafters.dflash_tensors()
    for i in range(2):
        for name, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16), ("o_proj", 32)):
            tensors[f"layers.{i}.self_attn.{name}.bias"] = torch.linspace(-1, 1, rows) * (i + 1)
    config = drafters.dflash_config(attention_bias=True)
    drafter = load(drafters.write_folder(tmp_path / "d", config, tensors), LoadOptions(), place)
    states, ids = drafters.random_sequence()
    _, got = draft(drafter, states, ids, [9])
    tables = drafters.shared_tables()
    rows = reference.dflash_block(tensors, config, states, ids, 9, embedding=tables["embed_tokens.weight"])
    logprobs = reference.log_softmax(rows[1:] @ tables["lm_head.weight"].double().T)
    want = torch.stack([reference.ranked(row, 5)[1] for row in logprobs])
    torch.testing.assert_close(got[0].double(), want, **FLOAT32)
