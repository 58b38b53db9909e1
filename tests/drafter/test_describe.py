"""What is read from configurations, names and shapes; every difference an error that names both sides."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kit import drafters
from tauscope_drafter.checkpoint.names import normalise, strip
from tauscope_drafter.checkpoint.options import LoadOptions, parse_drafter
from tauscope_drafter.checkpoint.reading import Description, describe
from tauscope_wire.errors import CheckpointError, ErrorCode, RequestError


def described(
    folder: Path, config: dict[str, Any] | None, options: LoadOptions | None = None, **tensors: Any
) -> Description:
    weights = drafters.dflash_tensors() | tensors
    weights = {name: t for name, t in weights.items() if t is not None}
    description = describe(drafters.write_folder(folder, config, weights), options or LoadOptions())
    description.check()
    return description


def refusal(folder: Path, config: dict[str, Any] | None, options: LoadOptions | None = None, **tensors: Any) -> Any:
    with pytest.raises(CheckpointError) as caught:
        described(folder, config, options, **tensors)
    return caught.value


def test_old_and_new_spellings_give_the_same_description(tmp_path: Path) -> None:
    old = described(tmp_path / "old", drafters.dflash_config()).spec
    nested = {"target_layer_ids": list(drafters.TAPS), "mask_token_id": drafters.MASK, "block_size": drafters.BLOCK}
    changes: dict[str, Any] = {"block_size": None, "dflash_config": nested, "rope_theta": None}
    changes["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    new = described(tmp_path / "new", drafters.dflash_config(**changes)).spec
    assert new == old
    assert old.taps == drafters.TAPS
    assert old.layers.rope.theta == 10000.0
    assert old.layers.rope.dim == 8


def test_a_config_may_be_replaced_by_options(tmp_path: Path) -> None:
    options = LoadOptions(block_size=4, taps=(1, 3, 4), mask_token_id=7, rope_theta=10000.0)
    tables = drafters.shared_tables()
    spec = described(tmp_path / "bare", None, options, **tables).spec
    told = described(tmp_path / "told", drafters.dflash_config(), **tables).spec
    assert spec.layers == told.layers
    assert (spec.block_size, spec.taps, spec.mask_token_id) == (told.block_size, told.taps, told.mask_token_id)
    assert any("rms_norm_eps" in w for w in spec.warnings)
    assert any("full attention" in w for w in spec.warnings)


def test_taps_may_be_given_in_either_convention(tmp_path: Path) -> None:
    options = LoadOptions(taps=(2, 4, 5), convention="tuple")
    assert described(tmp_path, drafters.dflash_config(), options).spec.taps == drafters.TAPS


@pytest.mark.parametrize(
    ("removed", "option"),
    [
        ({"block_size": None}, "block_size="),
        ({"dflash_config": {"mask_token_id": 7}}, "taps="),
        ({"dflash_config": {"target_layer_ids": [1, 3, 4]}}, "mask_token_id="),
        ({"rope_theta": None}, "rope_theta="),
        ({"rms_norm_eps": None}, "rms_norm_eps="),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window="),
    ],
)
def test_what_weights_cannot_tell_must_be_given_and_the_error_names_the_option(
    tmp_path: Path, removed: dict[str, Any], option: str
) -> None:
    error = refusal(tmp_path, drafters.dflash_config(**removed))
    assert error.code is ErrorCode.CONFIG_INCOMPLETE
    assert option in error.message


def test_all_that_weights_alone_do_not_tell_is_named_in_one_error_and_giving_it_is_enough(tmp_path: Path) -> None:
    tables = drafters.shared_tables()
    error = refusal(tmp_path / "bare", None, **tables)
    assert error.code is ErrorCode.CONFIG_INCOMPLETE
    assert error.details["options"] == ["rope_theta", "taps", "block_size", "mask_token_id"]
    for words in ("rope_theta=1e6", "taps=1:16:31:46:61", "block_size=16", "mask_token_id=151669", "are examples"):
        assert words in error.message
    given = LoadOptions(rope_theta=10000.0, taps=drafters.TAPS, block_size=4, mask_token_id=7)
    assert described(tmp_path / "given", None, given, **tables).spec.taps == drafters.TAPS
    some = refusal(tmp_path / "some", None, LoadOptions(block_size=4, mask_token_id=7))
    assert some.details["options"] == ["rope_theta", "taps", "target_model"]
    assert "--target-model DIR" in some.message


def test_a_stand_in_never_reaches_a_description_nor_hides_a_wrong_value(tmp_path: Path) -> None:
    error = refusal(tmp_path, drafters.dflash_config(rope_theta=None, block_size=1))
    assert error.code is ErrorCode.CONFIG_INCOMPLETE and "rope_theta=" in error.message
    error = refusal(tmp_path / "b", drafters.dflash_config(block_size=1))
    assert "block_size=1 is outside" in error.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 64}, ["hidden_size=64", "fc.weight", "32"]),
        ({"intermediate_size": 50}, ["intermediate_size=50", "48"]),
        ({"num_attention_heads": 8}, ["num_attention_heads=8", "q_proj"]),
        ({"num_key_value_heads": 4}, ["num_key_value_heads=4", "k_proj"]),
        ({"head_dim": 16}, ["head_dim=16", "q_norm"]),
        ({"num_hidden_layers": 3}, ["num_hidden_layers=3", "2 layers"]),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, ["num_hidden_layers=1"]),
        ({"dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 7, "target_hidden_size": 32}}, ["fc.weight"]),
        ({"dflash_config": {"target_layer_ids": [1, 2, 3, 4, 5], "mask_token_id": 7}}, ["96 columns", "5 taps"]),
        ({"dflash_config": {"target_layer_ids": [1, 3, 9], "mask_token_id": 7}}, ["tap 9", "0..5"]),
        ({"dflash_config": {"target_layer_ids": [1, 3, 3], "mask_token_id": 7}}, ["each layer once"]),
        ({"dflash_config": {"target_layer_ids": [1, 3, 4], "mask_token_id": 96}}, ["mask_token_id=96", "0..95"]),
        (
            {"block_size": 8, "dflash_config": {"target_layer_ids": [1, 3, 4], "mask_token_id": 7, "block_size": 16}},
            ["block_size is 8", "block_size is 16"],
        ),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, ["spiral", "yarn"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, ["original_max_position_embeddings"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "wobble": 1}}, ["wobble"]),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, ["10000", "5"]),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, ["partial_rotary_factor"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"layer_types": ["full_attention"]}, ["1 layer_types", "2 layers"]),
        ({"layer_types": ["spotty_attention"] * 2}, ["spotty_attention"]),
        ({"block_size": "16"}, ["block_size"]),
        ({"sample_from_anchor": True, "shift_label": False}, ["contradict", "layout="]),
        ({"layer_types": None, "use_sliding_window": True, "sliding_window": 9}, ["layer_types="]),
    ],
)
def test_settings_that_contradict_the_tensors_or_each_other_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    message = refusal(tmp_path, drafters.dflash_config(**changes)).message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("name", "tensor", "code", "words"),
    [
        ("layers.1.mlp.up_proj.weight", None, ErrorCode.TENSOR_MISSING, ["up_proj", "[48, 32]"]),
        ("layers.1.mlp.up_proj.weight", torch.zeros(32, 48), ErrorCode.TENSOR_SHAPE, ["[32, 48]", "transposed"]),
        ("layers.1.self_attn.k_norm.weight", torch.zeros(16), ErrorCode.TENSOR_SHAPE, ["[16]", "expected [8]"]),
        ("layers.1.self_attn.extra.weight", torch.zeros(3), ErrorCode.TENSOR_UNEXPECTED, ["extra", "[3]"]),
        ("fc.weight", torch.zeros(32, 95), ErrorCode.TENSOR_SHAPE, ["95 columns"]),
        ("layers.7.mlp.up_proj.weight", torch.zeros(48, 32), ErrorCode.TENSOR_MISSING, ["layers.2."]),
        ("layers.999999999999.x", torch.zeros(1), ErrorCode.TENSOR_UNEXPECTED, ["numbered from 0"]),
        ("layers.one.x", torch.zeros(1), ErrorCode.TENSOR_UNEXPECTED, ["layers.one"]),
        ("fc.bias", torch.zeros(32), ErrorCode.TENSOR_UNEXPECTED, ["fc.bias"]),
        ("layers.0.self_attn.g_proj.weight", torch.zeros(3), ErrorCode.CHECKPOINT_UNSUPPORTED, ["gate"]),
        ("aux_hidden_norms.0.weight", torch.zeros(32), ErrorCode.CHECKPOINT_UNSUPPORTED, ["norm per tap"]),
    ],
)
def test_every_wrong_tensor_is_named_with_what_was_expected(
    tmp_path: Path, name: str, tensor: torch.Tensor | None, code: ErrorCode, words: list[str]
) -> None:
    error = refusal(tmp_path, drafters.dflash_config(), **{name: tensor})
    assert error.code is code, error
    assert all(word in error.message for word in words), error.message


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, "fill-in"),
        ({"sample_from_anchor": True}, "anchor-first"),
        ({"query_zero_predicts_next": True}, "anchor-first"),
        ({"shift_label": True}, "anchor-first"),
        ({"shift_label": False}, "fill-in"),
        ({"architectures": ["Qwen3DSparkModel"]}, "anchor-first"),
        ({"num_anchors": 512}, "anchor-first"),
    ],
)
def test_the_layout_follows_flags_then_architecture_then_format(
    tmp_path: Path, changes: dict[str, Any], layout: str
) -> None:
    spec = described(tmp_path, drafters.dflash_config(**changes)).spec
    assert spec.layout == layout
    assert spec.drafts == (drafters.BLOCK if layout == "anchor-first" else drafters.BLOCK - 1)


def test_an_option_overrides_the_layout_of_the_files(tmp_path: Path) -> None:
    config = drafters.dflash_config(sample_from_anchor=True)
    assert described(tmp_path, config, LoadOptions(layout="fill-in")).spec.layout == "fill-in"


def test_wrappers_of_trainers_are_stripped_from_names() -> None:
    for wrapped in ("module._orig_mod.model.fc.weight", "draft_model.fc.weight", "_fsdp_wrapped_module.fc.weight"):
        assert strip(wrapped) == "fc.weight"
    assert strip("layers.0._checkpoint_wrapped_module.mlp.up_proj.weight") == "layers.0.mlp.up_proj.weight"


def test_two_names_for_one_tensor_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"both mean fc\.weight"):
        normalise(["fc.weight", "model.fc.weight"], "file")


def test_options_of_the_command_line_are_read_and_wrong_ones_named() -> None:
    name, path, options = parse_drafter("early=/x/y.pt,block_size=16,taps=1:16:31,rope_theta=1e7,layout=fill-in")
    assert (name, path) == ("early", "/x/y.pt")
    assert options == LoadOptions(block_size=16, taps=(1, 16, 31), rope_theta=1e7, layout="fill-in")
    for wrong, word in (("x", "NAME=PATH"), ("a=b,blok=3", "blok"), ("a=b,block_size=x", "block_size='x'")):
        with pytest.raises(RequestError, match=word):
            parse_drafter(wrong)
