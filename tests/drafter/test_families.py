"""Every family against its slow reference: free-running as a server would, and following labels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drafter import reference, reference_heads
from drafter.reference_heads import Rows, Walk
from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.families.family import label_warnings
from tauscope_drafter.loading import Loaded, Place, load, open_place

# float32 through a few layers against float64, on logits of order ten
FLOAT32 = {"rtol": 3e-4, "atol": 3e-4}
ANCHORS = [1, 9, 20, 22]
TOP_K = 4
STATES, IDS = drafters.random_sequence(24)
TOKENS = IDS.tolist()


@dataclass(frozen=True)
class Case:
    """A family's checkpoint, and its reference for one anchor."""

    config: dict[str, Any] | None
    tensors: drafters.Tensors
    expected: Callable[[int, Walk], None]
    options: LoadOptions = field(default_factory=LoadOptions)
    states: Tensor = STATES


def block_rows(tensors: drafters.Tensors, config: dict[str, Any], p: int, *, all_rows: bool, **how: Any) -> Tensor:
    nested = config.get("dflash_config") or {"mask_token_id": drafters.MASK}
    rows = reference.dflash_block(
        tensors,
        {**config, "dflash_config": nested},
        STATES,
        IDS,
        p,
        embedding=drafters.shared_tables()["embed_tokens.weight"],
        **how,
    )
    return rows if all_rows else rows[1:]


def dspark(kind: str) -> Case:
    config, tensors = drafters.dspark_config(kind), drafters.dspark_tensors(kind)

    def expected(p: int, walk: Walk) -> None:
        rows = block_rows(tensors, config, p, all_rows=True)
        reference_heads.dspark(tensors, rows, TOKENS[p], walk, kind)

    return Case(config, tensors, expected)


def domino(shift_label: bool, pure: int) -> Case:
    config, tensors = drafters.domino_config(shift_label=shift_label, pure=pure), drafters.domino_tensors()

    def expected(p: int, walk: Walk) -> None:
        reference_heads.domino(tensors, block_rows(tensors, config, p, all_rows=shift_label), TOKENS[p], walk, pure)

    return Case(config, tensors, expected)


def dflash2(kernel: int) -> Case:
    config = drafters.dflash2_config(conv_kernel_size=kernel)
    tensors = drafters.dflash2_tensors(kernel=kernel)

    def expected(p: int, walk: Walk) -> None:
        def sees(layer: int, i: int, key: int, in_block: int) -> bool:
            return abs(p + i - key) < config["sliding_window"]

        wrap = reference_heads.convolution_wrap(tensors)
        rows = block_rows(tensors, config, p, all_rows=False, sees=sees, wrap=wrap)
        reference_heads.dflash2(tensors, rows, TOKENS[p], walk, config["selector_top_k"])

    return Case(config, tensors, expected)


def eagle3(**switches: Any) -> Case:
    config, tensors = drafters.eagle3_config(**switches), drafters.eagle3_tensors()
    if switches:
        config["speculators_model_type"] = "eagle3"
    how = {**switches, "drafts": 3, "head": tensors["lm_head.weight"], "target_ids": drafters.draft_ids(40)}

    def expected(p: int, walk: Walk) -> None:
        reference_heads.eagle3(tensors, config, STATES, TOKENS, p, walk=walk, how=how)

    return Case(config, tensors, expected, LoadOptions(block_size=4, taps=drafters.TAPS))


def eagle3_whole_vocabulary() -> Case:
    tensors = drafters.eagle3_tensors(draft_vocab=drafters.VOCAB, own_head=False)
    config = drafters.eagle3_config(draft_vocab_size=None)
    how = {"drafts": 3, "head": drafters.shared_tables()["lm_head.weight"]}

    def expected(p: int, walk: Walk) -> None:
        reference_heads.eagle3(tensors, config, STATES, TOKENS, p, walk=walk, how=how)

    return Case(config, tensors, expected, LoadOptions(block_size=4, taps=drafters.TAPS))


def peagle() -> Case:
    config, tensors = drafters.eagle3_config(layers=2, pard_token=5), drafters.eagle3_tensors(layers=2)
    how = {"layers": 2, "mask": 5, "drafts": 3, "head": tensors["lm_head.weight"], "target_ids": drafters.draft_ids(40)}

    def expected(p: int, walk: Walk) -> None:
        reference_heads.eagle3(tensors, config, STATES, TOKENS, p, walk=walk, how=how)

    return Case(config, tensors, expected, LoadOptions(block_size=4, taps=drafters.TAPS))


def mtp(hidden: str) -> Case:
    tensors = drafters.mtp_tensors()
    config = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": drafters.TARGET_LAYERS,
        "hidden_size": drafters.HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": drafters.VOCAB,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1],
            "mrope_interleaved": True,
        },
    }
    generator = torch.Generator().manual_seed(5)
    final = 1 + 0.1 * torch.randn(drafters.HIDDEN, generator=generator) if hidden == "post" else None

    def expected(p: int, walk: Walk) -> None:
        reference_heads.mtp(tensors, STATES[:1], TOKENS, p, walk, drafts=3, final_norm=final)

    return Case(config, tensors, expected, LoadOptions(block_size=4, mtp_hidden=hidden), STATES[:1])  # type: ignore[arg-type]


CASES: dict[str, Callable[[], Case]] = {
    "dspark-vanilla": lambda: dspark("vanilla"),
    "dspark-gated": lambda: dspark("gated"),
    "dspark-rnn": lambda: dspark("rnn"),
    "domino-fill-in": lambda: domino(False, 1),
    "domino-anchor-first": lambda: domino(True, 2),
    "dflash2": lambda: dflash2(2),
    "dflash2-long-kernel": lambda: dflash2(3),
    "eagle3": eagle3,
    "eagle3.1": lambda: eagle3(norm_before_residual=True, norm_output=True),
    "eagle3-whole-vocabulary": eagle3_whole_vocabulary,
    "peagle": peagle,
    "mtp-post": lambda: mtp("post"),
    "mtp-pre": lambda: mtp("pre"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return open_place(torch.device("cpu"), torch.float32, drafters.write_target(tmp_path_factory.mktemp("target")))


def loaded(case: Case, folder: Path, place: Place) -> Loaded:
    return load(drafters.write_folder(folder, case.config, case.tensors), case.options, place)


def drafted(drafter: Loaded, case: Case, anchors: list[int], *, labels: bool = False) -> Any:
    with torch.inference_mode():
        context = drafter.network.fuse(case.states, IDS)
        return drafter.network.draft(context, anchors, IDS, top_k=TOP_K, labels=labels)


@pytest.mark.parametrize("labels", [False, True], ids=["free", "labels"])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_anchors_drafts_what_the_slow_reference_drafts(
    name: str, labels: bool, tmp_path: Path, place: Place
) -> None:
    case = CASES[name]()
    drafter = loaded(case, tmp_path / "d", place)
    assert drafter.spec.family == name.partition("-")[0].partition(".")[0]
    found = drafted(drafter, case, ANCHORS, labels=labels)
    for row, p in enumerate(ANCHORS):
        walk = Walk(TOKENS[p + 1 :] if labels else None, TOP_K)
        case.expected(p, walk)
        check(walk.rows[: drafter.spec.drafts], found, row)


def check(rows: Rows, found: Any, row: int) -> None:
    assert found.token_ids[row].tolist() == [ids[0] for ids, _ in rows]
    assert found.top_ids[row].tolist() == [ids for ids, _ in rows]
    torch.testing.assert_close(found.top_logprobs[row].double(), torch.stack([v for _, v in rows]), **FLOAT32)


@pytest.mark.parametrize("name", CASES)
def test_accepted_is_the_same_free_running_and_following_labels(name: str, tmp_path: Path, place: Place) -> None:
    """The labels here are the drafter's own drafts up to a planted miss, so that long prefixes occur."""
    case = CASES[name]()
    drafter = loaded(case, tmp_path / "d", place)
    p, miss = 9, drafter.spec.drafts - 1
    own = drafted(drafter, case, [p]).token_ids[0]
    ids = IDS.clone()
    ids[p + 1 : p + 1 + miss] = own[:miss]
    ids[p + 1 + miss] = (own[miss] + 1) % drafters.VOCAB
    with torch.inference_mode():
        context = drafter.network.fuse(case.states, ids)
        free, forced = (
            drafter.network.draft(context, [p], ids, top_k=1, labels=labels).token_ids[0] for labels in (False, True)
        )
    labels_at = ids[p + 1 : p + 1 + drafter.spec.drafts]
    accepted = [int((rows == labels_at).long().cumprod(0).sum()) for rows in (free, forced)]
    assert accepted[0] == accepted[1] == miss


@pytest.mark.parametrize("name", CASES)
def test_labels_change_rows_after_a_miss_exactly_where_the_network_says_that_rows_depend_on_drafts(
    name: str, tmp_path: Path, place: Place
) -> None:
    case = CASES[name]()
    drafter = loaded(case, tmp_path / "d", place)
    free, forced = (drafted(drafter, case, ANCHORS, labels=labels) for labels in (False, True))
    assert not torch.equal(free.token_ids[:, 0], IDS[torch.tensor(ANCHORS) + 1])  # random drafts miss at once
    assert torch.equal(free.top_logprobs[:, 0], forced.top_logprobs[:, 0])
    assert torch.equal(free.top_logprobs, forced.top_logprobs) is not drafter.network.rows_depend_on_drafts
    assert len(label_warnings(drafter.network, labels=True)) == drafter.network.rows_depend_on_drafts
    assert not label_warnings(drafter.network, labels=False)


@pytest.mark.parametrize("name", CASES)
def test_a_large_batch_equals_single_anchors(name: str, tmp_path: Path, place: Place) -> None:
    case = CASES[name]()
    drafter = loaded(case, tmp_path / "d", place)
    anchors = list(range(1, 23))
    together = drafted(drafter, case, anchors)
    for row, p in enumerate(anchors):
        alone = drafted(drafter, case, [p])
        assert torch.equal(alone.top_ids[0], together.top_ids[row])
        # the order of float32 sums differs between a batch and one anchor
        torch.testing.assert_close(alone.top_logprobs[0], together.top_logprobs[row], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_state_at_the_anchor_is_not_read_and_the_one_before_is(name: str, tmp_path: Path, place: Place) -> None:
    case = CASES[name]()
    drafter = loaded(case, tmp_path / "d", place)
    p = 12
    before = drafted(drafter, case, [p]).top_logprobs
    at_anchor, one_earlier = case.states.clone(), case.states.clone()
    at_anchor[:, p:] += 1.0
    one_earlier[:, p - 1] += 1.0
    with torch.inference_mode():
        outputs = [
            drafter.network.draft(drafter.network.fuse(states, IDS), [p], IDS, top_k=TOP_K).top_logprobs
            for states in (at_anchor, one_earlier)
        ]
    assert torch.equal(outputs[0], before)
    assert not torch.equal(outputs[1], before)


def test_prompt_lookup_proposes_what_followed_last_time(place: Place) -> None:
    options = LoadOptions(family="ngram", block_size=5, max_ngram=2)
    network = load(Path("-"), options, place).network
    ids = torch.tensor([1, 2, 3, 4, 9, 2, 3, 7, 8, 5, 2, 3])
    drafts = network.draft(network.fuse(torch.empty(0, 12, 0), ids), [1, 8, 11], ids, top_k=3)
    # at 11 the text ends with "2 3", last seen before "7 8 5 2"; at 1 and 8 nothing repeats: the anchor's own token
    assert drafts.token_ids.tolist() == [[2, 2, 2, 2], [8, 8, 8, 8], [7, 8, 5, 2]]
    assert drafts.top_ids[2].tolist() == [[7, 0, 1], [8, 0, 1], [5, 0, 1], [2, 0, 1]]
    mass = drafts.top_logprobs[..., :1].exp() + (drafters.VOCAB - 1) * drafts.top_logprobs[..., 1:2].exp()
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=1e-5, atol=1e-5)


def test_prompt_lookup_reads_on_in_its_own_drafts(place: Place) -> None:
    network = load(Path("-"), LoadOptions(family="ngram", block_size=7), place).network
    ids = torch.tensor([5, 6, 5, 6])
    assert network.draft(None, [3], ids, top_k=1).token_ids.tolist() == [[5, 6, 5, 6, 5, 6]]


def test_the_oracle_is_wrong_as_often_as_it_was_told_wherever_the_batch_is_cut(place: Place) -> None:
    options = LoadOptions(family="oracle", block_size=16, noise=0.25, seed=3)
    network = load(Path("-"), options, place).network
    _, ids = drafters.random_sequence(400)
    anchors = list(range(1, 380))
    drafts = network.draft(None, anchors, ids, top_k=1).token_ids
    labels = torch.stack([ids[p + 1 : p + 16] for p in anchors])
    wrong = float((drafts != labels).float().mean())
    assert abs(wrong - 0.25) < 0.02  # 5685 draws: three standard deviations are 0.017
    assert torch.equal(network.draft(None, anchors[7:9], ids, top_k=1).token_ids, drafts[7:9])
