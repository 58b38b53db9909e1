"""One set of weights in every format: the same description, hash and logits; and the verdicts that led there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.reading import describe
from tauscope_drafter.loading import Loaded, Place, load, open_place
from tauscope_wire.errors import CheckpointError, ErrorCode

STATES, IDS = drafters.random_sequence()
ANCHORS = [1, 9, 22]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return open_place(torch.device("cpu"), torch.float32, drafters.write_target(tmp_path_factory.mktemp("target")))


def drafts(drafter: Loaded) -> Any:
    with torch.inference_mode():
        return drafter.network.draft(drafter.network.fuse(STATES, IDS), ANCHORS, IDS, top_k=6)


def assert_same(one: Loaded, other: Loaded) -> None:
    assert one.sha256 == other.sha256
    assert one.spec.layers == other.spec.layers
    assert one.spec.taps == other.spec.taps
    for a, b in zip(drafts(one), drafts(other), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("format_", drafters.DFLASH_FORMATS)
def test_dflash_is_the_same_in_every_format(format_: str, tmp_path: Path, place: Place) -> None:
    options = LoadOptions(layout="fill-in")  # DeepSpec trains this network anchor-first
    if format_ == "torchspec":
        options = LoadOptions(layout="fill-in", block_size=drafters.BLOCK)  # a training flag there, in no file
    if format_ == "training-checkpoint":
        options = LoadOptions(block_size=4, taps=drafters.TAPS, mask_token_id=drafters.MASK, rope_theta=10000.0)
    drafter = load(drafters.write_dflash(tmp_path / "d", format_), options, place)
    plain = load(drafters.write_dflash(tmp_path / "plain", "z-lab"), LoadOptions(), place)
    named = {"z-lab-new": "z-lab", "fused": "z-lab", "sharded": "z-lab", "pytorch-bin": "z-lab"}
    assert drafter.spec.format == named.get(format_, format_)
    assert drafter.from_target == ("embed_tokens", "lm_head")
    assert_same(drafter, plain)


@pytest.mark.parametrize("format_", drafters.DSPARK_FORMATS)
def test_dspark_is_the_same_in_every_format(format_: str, tmp_path: Path, place: Place) -> None:
    drafter = load(drafters.write_dspark(tmp_path / "d", format_), LoadOptions(), place)
    plain = load(drafters.write_dspark(tmp_path / "plain", "deepspec"), LoadOptions(), place)
    assert (drafter.spec.family, drafter.spec.format, drafter.spec.layout) == ("dspark", format_, "anchor-first")
    assert not [w for w in drafter.spec.warnings if "speculative_tokens" in w]
    assert_same(drafter, plain)


@pytest.mark.parametrize("format_", drafters.EAGLE3_FORMATS)
def test_eagle3_is_the_same_in_every_format(format_: str, tmp_path: Path, place: Place) -> None:
    options = LoadOptions() if format_ == "speculators" else LoadOptions(block_size=4)
    drafter = load(drafters.write_eagle3(tmp_path / "d", format_), options, place)
    plain = load(drafters.write_eagle3(tmp_path / "plain", "eagle"), LoadOptions(block_size=4), place)
    assert drafter.spec.family == "eagle3"
    assert_same(drafter, plain)


@pytest.mark.parametrize("format_", drafters.DOMINO_FORMATS)
def test_domino_is_the_same_in_every_format(format_: str, tmp_path: Path, place: Place) -> None:
    drafter = load(drafters.write_domino(tmp_path / "d", format_), LoadOptions(), place)
    assert (drafter.spec.family, drafter.spec.format, drafter.spec.layout) == ("domino", format_, "fill-in")
    assert_same(drafter, load(drafters.write_domino(tmp_path / "plain", "z-lab"), LoadOptions(), place))


@pytest.mark.parametrize("format_", drafters.DFLASH2_FORMATS)
def test_dflash2_is_the_same_in_every_format(format_: str, tmp_path: Path, place: Place) -> None:
    drafter = load(drafters.write_dflash2(tmp_path / "d", format_), LoadOptions(), place)
    plain = load(drafters.write_dflash2(tmp_path / "plain", "z-lab"), LoadOptions(), place)
    assert (drafter.spec.family, drafter.spec.format) == ("dflash2", format_)
    assert drafter.sha256 == plain.sha256
    for window in drafter.spec.layers.windows:
        assert (window.size, window.causal) == (9, False)
    if format_ == "speculators":
        return  # its window is placed once per block, the others' per row: long contexts differ by definition
    assert_same(drafter, plain)


@pytest.mark.parametrize("format_", drafters.PEAGLE_FORMATS)
def test_peagle_is_the_same_in_every_format(format_: str, tmp_path: Path, place: Place) -> None:
    drafter = load(drafters.write_peagle(tmp_path / "d", format_), LoadOptions(), place)
    assert (drafter.spec.family, drafter.spec.format) == ("peagle", format_)
    assert_same(drafter, load(drafters.write_peagle(tmp_path / "plain", "eagle"), LoadOptions(), place))


@pytest.mark.parametrize("format_", drafters.MTP_FORMATS)
def test_mtp_is_the_same_inside_of_a_target_and_from_its_trainer(format_: str, tmp_path: Path, place: Place) -> None:
    found = []
    for name in (format_, "target"):
        options = LoadOptions(block_size=4, mtp_hidden="post" if name == "speculators" else None)
        found.append(load(drafters.write_mtp(tmp_path / name, name), options, place))
    drafter, plain = found
    assert (drafter.spec.family, drafter.spec.format) == ("mtp", format_)
    assert drafter.spec.taps == (drafters.TARGET_LAYERS - 1,)
    assert drafter.spec.layers.rope.dim == 4
    assert drafter.sha256 == plain.sha256
    with torch.inference_mode():
        a, b = (d.network.draft(d.network.fuse(STATES[:1], IDS), ANCHORS, IDS, top_k=6) for d in found)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_which_state_an_mtp_head_of_a_trainer_reads_must_be_given(tmp_path: Path, place: Place) -> None:
    with pytest.raises(CheckpointError, match="mtp_hidden=post or mtp_hidden=pre"):
        load(drafters.write_mtp(tmp_path / "d", "speculators"), LoadOptions(block_size=4), place)


def write(folder: Path, config: dict[str, Any] | None, tensors: drafters.Tensors) -> Path:
    return drafters.write_folder(folder, config, tensors)


AMBIGUOUS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "two families' tensors": (
        lambda f: write(f, drafters.dspark_config(), drafters.dspark_tensors() | drafters.domino_tensors()),
        ["family=domino", "family=dspark"],
    ),
    "the configuration says another family than the tensors": (
        lambda f: write(
            f,
            json.loads((drafters.write_dflash(f / "x", "speculators") / "config.json").read_text()),
            drafters.dspark_tensors(),
        ),
        ["family=dflash", "family=dspark"],
    ),
    "taps that two engines read in two ways": (
        lambda f: write(
            f,
            drafters.eagle3_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, block_size=4),
            drafters.eagle3_tensors(),
        ),
        ["taps=1:3:4", "taps=0:2:3"],
    ),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguity_is_an_error_that_lists_the_choices(name: str, tmp_path: Path) -> None:
    make, words = AMBIGUOUS[name]
    with pytest.raises(CheckpointError) as caught:
        describe(make(tmp_path / "d"), LoadOptions())
    assert caught.value.code is ErrorCode.CHECKPOINT_AMBIGUOUS
    assert all(word in caught.value.message for word in words), caught.value.message


def test_a_missing_switch_that_trainer_and_engine_default_differently_must_be_given(tmp_path: Path) -> None:
    folder = drafters.write_eagle3(tmp_path / "d", "speculators")
    config = json.loads((folder / "config.json").read_text())
    del config["norm_before_residual"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="norm_before_residual=false or true"):
        describe(folder, LoadOptions())
    assert describe(folder, LoadOptions(norm_before_residual=True)).spec.extras["norm_before_residual"]


def test_what_is_no_drafter_is_told_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {}, {"wte.weight": torch.zeros(3, 3)})
    with pytest.raises(CheckpointError, match=r"no drafter known here.*wte\.weight"):
        describe(folder, LoadOptions())
    with pytest.raises(CheckpointError, match=r"family 'medusa' is not known.*dflash"):
        describe(folder, LoadOptions(family="medusa"))


@pytest.mark.parametrize(
    ("name", "tensor", "code"),
    [
        ("markov_head.markov_w2.weight", None, ErrorCode.TENSOR_MISSING),
        ("markov_head.markov_w1.weight", torch.zeros(95, 6), ErrorCode.TENSOR_SHAPE),
        ("markov_head.gate_proj.weight", torch.zeros(6, 38), ErrorCode.TENSOR_MISSING),  # a gated head, called vanilla
        ("markov_head.extra", torch.zeros(2), ErrorCode.TENSOR_UNEXPECTED),
    ],
)
def test_wrong_tensors_of_a_head_are_refused(
    name: str, tensor: torch.Tensor | None, code: ErrorCode, tmp_path: Path
) -> None:
    tensors = {n: t for n, t in (drafters.dspark_tensors() | {name: tensor}).items() if t is not None}
    folder = write(tmp_path / "d", drafters.dspark_config(), tensors)
    with pytest.raises(CheckpointError) as caught:
        describe(folder, LoadOptions()).check()
    assert caught.value.code is code, caught.value


def test_a_head_that_is_not_the_targets_is_used_and_said(tmp_path: Path, place: Place) -> None:
    tables = drafters.shared_tables(seed=1234)
    folder = write(tmp_path / "d", drafters.dflash_config(), drafters.dflash_tensors() | tables)
    drafter = load(folder, LoadOptions(), place)
    assert drafter.from_target == ()
    assert any("lm_head" in w for w in drafter.spec.warnings)
    plain = load(drafters.write_dflash(tmp_path / "plain", "z-lab"), LoadOptions(), place)
    assert not torch.equal(drafts(drafter).top_logprobs, drafts(plain).top_logprobs)


def test_a_vocabulary_that_is_not_the_targets_is_a_mismatch(tmp_path: Path, place: Place) -> None:
    from tauscope_wire.errors import MismatchError

    folder = write(tmp_path / "d", drafters.dflash_config(vocab_size=97), drafters.dflash_tensors())
    with pytest.raises(MismatchError, match="97 tokens, the target's 96"):
        load(folder, LoadOptions(), place)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(32, 96, dtype=torch.int8), ["int8", "quantised"]),
        (torch.full((32, 96), torch.nan), ["NaN"]),
    ],
)
def test_weights_that_are_no_numbers_to_compute_with_are_refused(
    tmp_path: Path, place: Place, tensor: torch.Tensor, words: list[str]
) -> None:
    folder = write(tmp_path / "d", drafters.dflash_config(), drafters.dflash_tensors() | {"fc.weight": tensor})
    with pytest.raises(CheckpointError) as caught:
        load(folder, LoadOptions(), place)
    assert all(word in caught.value.message for word in ["fc.weight", *words])
