"""Tables of cut vocabularies: offsets, marks, and the tables that are neither."""

import pytest
import torch

from tauscope_drafter.checkpoint.vocabulary import target_ids
from tauscope_wire.errors import CheckpointError

IDS = torch.tensor([1, 2, 5, 9])
OFFSETS = IDS - torch.arange(4)
MARKS = torch.zeros(12, dtype=torch.bool).index_fill(0, IDS, value=True)


def ids(d2t: torch.Tensor | None, t2d: torch.Tensor | None, draft_vocab: int = 4) -> torch.Tensor | None:
    return target_ids(d2t, t2d, vocab=12, draft_vocab=draft_vocab, origin="file")


def test_offsets_marks_and_both_give_the_same_ids() -> None:
    for tables in ((OFFSETS, MARKS), (OFFSETS, None), (None, MARKS)):
        assert torch.equal(ids(*tables), IDS)


def test_marks_that_were_never_filled_in_count_as_missing() -> None:
    assert torch.equal(ids(OFFSETS, torch.zeros(12, dtype=torch.bool)), IDS)


def test_a_whole_vocabulary_needs_no_table() -> None:
    assert ids(None, None, 12) is None
    assert ids(torch.zeros(12, dtype=torch.int64), None, 12) is None


@pytest.mark.parametrize(
    ("d2t", "t2d", "draft_vocab", "message"),
    [
        (None, None, 4, "neither d2t nor t2d"),
        (OFFSETS + 1, MARKS, 4, "contradict"),
        (torch.tensor([1, 2, 5, 11]), None, 4, "absolute target ids"),
        (torch.tensor([3, 0, 1, 1]), None, 4, "does not map"),
        (OFFSETS, None, 5, "lm_head has 5 rows"),
        (None, MARKS[:11], 4, r"expected \[12\]"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(
    d2t: torch.Tensor | None, t2d: torch.Tensor | None, draft_vocab: int, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        ids(d2t, t2d, draft_vocab)
