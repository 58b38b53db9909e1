"""Every family against its slow reference: free-running as a server would, and following labels."""

from pathlib import Path
from typing import Any

import pytest
import torch

from drafter.cases import CASES, IDS, TOKENS, Case
from drafter.reference_heads import Rows, Walk
from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.families.family import label_warnings
from tauscope_drafter.loading import Loaded, Place, load, open_place

# float32 through a few layers against float64, on logits of order ten
FLOAT32 = {"rtol": 3e-4, "atol": 3e-4}
ANCHORS = [1, 9, 20, 22]
TOP_K = 4


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
