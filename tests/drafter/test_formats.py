"""One set of weights in every format: the same hash and logits, those of the slow reference; and the verdicts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from drafter import cases
from drafter.cases import IDS, STATES, Case
from drafter.reference_heads import Rows, Walk
from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.reading import describe
from tauscope_drafter.loading import Loaded, Place, load, open_place
from tauscope_wire.errors import CheckpointError, ErrorCode

ANCHORS = [1, 9, 22]
TOP_K = 5
# float32 through a few layers against float64, on logits of order ten
FLOAT32 = {"rtol": 3e-4, "atol": 3e-4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return open_place(torch.device("cpu"), torch.float32, drafters.write_target(tmp_path_factory.mktemp("target")))


def drafts(drafter: Loaded, states: torch.Tensor = STATES) -> Any:
    with torch.inference_mode():
        return drafter.network.draft(drafter.network.fuse(states, IDS), ANCHORS, IDS, top_k=TOP_K)


ALL_GIVEN = LoadOptions(block_size=4, taps=drafters.TAPS, mask_token_id=drafters.MASK, rope_theta=10000.0)
BLOCK_GIVEN = LoadOptions(block_size=4)
POST = LoadOptions(block_size=4, mtp_hidden="post")
# A window that no context here reaches: formats place it differently, see the test of it below.
WIDE = 64


@dataclass(frozen=True)
class Family:
    """One family's weights in every format.

    Attributes:
        write: (folder, format) -> path to load.
        formats: all that it is written in.
        case: its slow reference.
        options: what the files of a format leave open.
        verdicts: what `inspect` calls a format, where the name differs.
    """

    write: Callable[[Path, str], Path]
    formats: Sequence[str]
    case: Callable[[], Case]
    options: Mapping[str, LoadOptions] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "dflash": Family(
        drafters.write_dflash,
        drafters.DFLASH_FORMATS,
        cases.dflash,
        {
            "deepspec": LoadOptions(layout="fill-in"),  # trains this network anchor-first
            "torchspec": BLOCK_GIVEN,  # a training flag there, in no file
            "training-checkpoint": ALL_GIVEN,
        },
        dict.fromkeys(("z-lab-new", "fused", "sharded", "pytorch-bin", "specforge-export"), "z-lab"),
    ),
    "dflash2": Family(
        partial(drafters.write_dflash2, sliding_window=WIDE),
        drafters.DFLASH2_FORMATS,
        partial(cases.dflash2, window=WIDE),
    ),
    "dspark": Family(
        drafters.write_dspark,
        drafters.DSPARK_FORMATS,
        partial(cases.dspark, "gated"),
        verdicts={"specforge-export": "deepspec"},
    ),
    "domino": Family(
        drafters.write_domino,
        drafters.DOMINO_FORMATS,
        partial(cases.domino, False, 1),
        verdicts={"specforge-export": "z-lab"},
    ),
    "eagle3": Family(
        drafters.write_eagle3,
        drafters.EAGLE3_FORMATS,
        cases.eagle3,
        {name: BLOCK_GIVEN for name in drafters.EAGLE3_FORMATS if name != "speculators"},
        dict.fromkeys(("only-d2t", "only-t2d", "specforge-export"), "eagle"),
    ),
    "peagle": Family(
        drafters.write_peagle, drafters.PEAGLE_FORMATS, cases.peagle, verdicts={"specforge-export": "eagle"}
    ),
    "mtp": Family(
        drafters.write_mtp,
        drafters.MTP_FORMATS,
        partial(cases.mtp, "post"),
        {"target": BLOCK_GIVEN, "speculators": POST},
    ),
}


@cache
def reference_of(family: str) -> list[Rows]:
    """Rows of the slow reference, free-running, for each of `ANCHORS`."""
    case, found = FAMILIES[family].case(), []
    for p in ANCHORS:
        walk = Walk(None, TOP_K)
        case.expected(p, walk)
        found.append(walk.rows)
    return found


@cache
def first_drafts(family: str) -> dict[str, Any]:
    """Hash and drafts of the first format that was loaded; all others must be the same, bit for bit."""
    return {}


@pytest.mark.parametrize(("family", "format_"), [(n, f) for n, family in FAMILIES.items() for f in family.formats])
def test_every_format_gives_the_same_logits_and_they_are_those_of_the_slow_reference(
    family: str, format_: str, tmp_path: Path, place: Place
) -> None:
    how = FAMILIES[family]
    options = how.options.get(format_, LoadOptions())
    drafter = load(how.write(tmp_path / "d", format_), options, place)
    assert (drafter.spec.family, drafter.spec.format) == (family, how.verdicts.get(format_, format_))
    assert not [w for w in drafter.spec.warnings if "speculative_tokens" in w]
    found = drafts(drafter, how.case().states)
    for row, rows in enumerate(reference_of(family)):
        assert found.top_ids[row].tolist() == [ids for ids, _ in rows]
        expected = torch.stack([logprobs for _, logprobs in rows])
        torch.testing.assert_close(found.top_logprobs[row].double(), expected, **FLOAT32)
    first = first_drafts(family)
    if not first:
        first |= {"sha256": drafter.sha256, "drafts": found, "taps": drafter.spec.taps}
    assert (drafter.sha256, drafter.spec.taps) == (first["sha256"], first["taps"])
    assert all(torch.equal(a, b) for a, b in zip(found, first["drafts"], strict=True))


@pytest.mark.parametrize(
    ("format_", "per_block"), [("z-lab", False), ("training-checkpoint", False), ("speculators", True)]
)
def test_a_window_is_placed_as_the_trainer_of_the_format_places_it(
    format_: str, per_block: bool, tmp_path: Path, place: Place
) -> None:
    """speculators opens it once per block, all others for every row: past the window the same weights differ."""
    drafter = load(drafters.write_dflash2(tmp_path / "d", format_), LoadOptions(), place)
    case, found = cases.dflash2(per_block=per_block), drafts(drafter)
    for row, p in enumerate(ANCHORS):
        walk = Walk(None, TOP_K)
        case.expected(p, walk)
        assert found.top_ids[row].tolist() == [ids for ids, _ in walk.rows]
        expected = torch.stack([logprobs for _, logprobs in walk.rows])
        torch.testing.assert_close(found.top_logprobs[row].double(), expected, **FLOAT32)


COLUMNS = {
    "z-lab": "z-lab",
    "speculators": "speculators",
    "specforge": "SpecForge",
    "specforge-export": "its export",
    "torchspec": "TorchSpec",
    "modelopt": "ModelOpt",
    "deepspec": "DeepSpec",
    "eagle": "EAGLE",
    "target": "target",
    "training-checkpoint": "own trainer",
}


def test_the_page_on_formats_marks_exactly_what_is_tested_here() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text()
    lines = [[cell.strip().strip("`") for cell in line.strip("|\n").split("|")] for line in page.splitlines()]
    start = next(i for i, cells in enumerate(lines) if cells[0] == "family" and "SpecForge" in cells)
    assert lines[start] == ["family", *COLUMNS.values()]
    marked = {
        (cells[0], format_)
        for cells in lines[start + 2 : start + 2 + len(FAMILIES)]
        for format_, cell in zip(COLUMNS, cells[1:], strict=True)
        if cell == "yes"
    }
    assert marked == {(name, f) for name, family in FAMILIES.items() for f in family.formats if f in COLUMNS}


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
