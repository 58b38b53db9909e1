"""Ranking of logits that come in blocks, against a sort of all of them.

The kernel runs on a GPU (`make test-gpu`), or without one in Triton's interpreter:

TRITON_INTERPRET=1 pytest tests/target_hidden/test_ranking.py
"""

import os
from importlib.util import find_spec

import pytest
import torch

from tauscope_target.ranking import MOST_FUSED, PlainRanking, start_ranking

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]  # the interpreter cuts bits of BF16 off
WAYS = [
    "plain",
    pytest.param(
        "fused",
        marks=[
            *([] if INTERPRETED else [pytest.mark.gpu]),
            pytest.mark.skipif(DEVICE.type == "cpu" and not INTERPRETED, reason="needs a GPU, or TRITON_INTERPRET=1"),
        ],
    ),
]
NEGATIVE = float("-inf")
TOLERANCE = 1e-4
"""float32 sums of a few thousand exponentials, in other orders."""


def ranked(way: str, logits: torch.Tensor, next_ids: torch.Tensor, best: int, blocks: list[int]):  # type: ignore[no-untyped-def]
    if way == "plain":
        ranking = PlainRanking(next_ids, best)
    else:
        from tauscope_target.ranking_kernels import FusedRanking

        ranking = FusedRanking(next_ids, best)
    start = 0
    for block in logits.split(blocks, dim=1):
        ranking.add(block, start)
        start += block.shape[1]
    return ranking.rows()


def check(
    way: str, logits: torch.Tensor, best: int, blocks: list[int], *, next_ids: torch.Tensor | None = None
) -> None:
    width = logits.shape[1]
    if next_ids is None:
        next_ids = torch.randint(0, width, (len(logits),), generator=torch.Generator().manual_seed(7)).to(DEVICE)
    found = ranked(way, logits, next_ids, best, blocks)
    order = logits.float().sort(dim=-1, descending=True, stable=True)  # stable: equal logits stay in the order of ids
    logprobs = order.values.double() - logits.double().logsumexp(-1, keepdim=True)
    torch.testing.assert_close(found.ids, order.indices[:, :best].int(), rtol=0, atol=0)
    torch.testing.assert_close(found.logprobs, logprobs[:, :best].float(), rtol=0, atol=TOLERANCE)
    expected = logits.double().log_softmax(-1).gather(1, next_ids[:, None])[:, 0].float()
    torch.testing.assert_close(found.next_logprobs, expected, rtol=0, atol=TOLERANCE)


def few_values(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows full of ties."""
    return (torch.randint(-40, 40, (rows, width), generator=torch.Generator().manual_seed(0)) / 8).to(DEVICE, dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("best", [1, 2, 3, 8, MOST_FUSED])
@pytest.mark.parametrize("blocks", [[3000], [1024, 1024, 952], [1000, 1999, 1], [17] * 176 + [8]], ids=lambda b: len(b))
def test_any_blocks_give_the_best_of_a_stable_sort(way: str, dtype: torch.dtype, best: int, blocks: list[int]) -> None:
    check(way, few_values(6, 3000, dtype), best, blocks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("best", [1, 5, 40])
def test_rows_that_rise_fall_or_hardly_have_a_token(way: str, best: int) -> None:
    logits = torch.empty(5, 2500, device=DEVICE)
    logits[0] = torch.arange(2500) / 100  # each column replaces one that is kept
    logits[1] = -logits[0]
    logits[2] = 0.0
    logits[2, ::2] = -0.0
    logits[3] = NEGATIVE
    logits[3, 2400:2450] = 1.0
    logits[4] = 100.0
    logits[4, 7] = -3e38
    check(way, logits, best, [1200, 1300], next_ids=torch.tensor([0, 2499, 1, 2449, 6], device=DEVICE))


@pytest.mark.parametrize("way", WAYS)
def test_a_list_as_long_as_the_vocabulary_and_blocks_shorter_than_the_list(way: str) -> None:
    check(way, few_values(4, 48, torch.float32), 48, [5] * 9 + [3])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_finite_leaves_no_finite_log_prob(way: str) -> None:
    logits = few_values(3, 900, torch.float32)
    logits[0, 450] = float("nan")
    logits[1, 899] = float("inf")
    found = ranked(way, logits, torch.zeros(3, dtype=torch.int64, device=DEVICE), 4, [400, 500])
    assert not found.logprobs[0].isfinite().any()
    assert not found.logprobs[1, 0].isfinite()
    assert found.logprobs[2].isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
def test_the_kernel_is_used_where_it_is_proven_and_not_for_long_lists() -> None:
    from tauscope_target.ranking_kernels import FusedRanking

    next_ids = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    assert isinstance(start_ranking(next_ids, MOST_FUSED, torch.bfloat16), FusedRanking)
    assert isinstance(start_ranking(next_ids, MOST_FUSED + 1, torch.bfloat16), PlainRanking)


def test_without_a_gpu_torch_ranks() -> None:
    assert isinstance(start_ranking(torch.zeros(3, dtype=torch.int64), 2, torch.bfloat16), PlainRanking)
