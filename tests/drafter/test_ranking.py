"""Order and completeness of the k best, against sorting whole rows; streaming of the head."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_drafter.head import Embedding, Head
from tauscope_drafter.ranking import block_size, top_k

CPU = torch.device("cpu")


def sorted_ids(row: torch.Tensor, k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-float(row[i]), i))[:k]


@given(
    seed=st.integers(0, 10_000),
    width=st.integers(1, 700),
    k=st.integers(1, 12),
    levels=st.sampled_from([2, 5, 1000]),
)
@settings(max_examples=80, deadline=None)
def test_the_k_best_are_those_of_a_full_sort_with_ties_to_the_lowest_id(
    seed: int, width: int, k: int, levels: int
) -> None:
    k = min(k, width)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-levels, levels, (3, width), generator=generator).float() / 7
    best = top_k(logits, k)
    for row in range(3):
        assert best.ids[row].tolist() == sorted_ids(logits[row], k)
    # one rounding of a logit of 143 is 1.5e-5
    torch.testing.assert_close(best.logprobs, logits.log_softmax(-1).gather(1, best.ids), rtol=1e-5, atol=3e-5)


def test_bf16_ties_at_the_edge_of_the_list_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 512, dtype=torch.bfloat16)
    logits[0, [511, 300, 77, 76]] = 1.0
    assert top_k(logits, 3).ids[0].tolist() == [76, 77, 300]
    assert top_k(logits, 6).ids[0].tolist() == [76, 77, 300, 511, 0, 1]


def test_negative_zero_and_zero_are_one_value() -> None:
    assert top_k(torch.tensor([[-0.0, 0.0, -1.0]]), 2).ids[0].tolist() == [0, 1]


@pytest.mark.parametrize("chunk_bytes", [1 << 8, 1 << 12, 1 << 28])
@pytest.mark.parametrize("streamed", [False, True])
def test_chunks_of_rows_and_slices_of_the_vocabulary_change_nothing(chunk_bytes: int, streamed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(777, 16, generator=generator)
    hidden = torch.randn(9, 16, generator=generator)
    stored = weight.double() if streamed else weight  # another dtype than the compute dtype is cast slice by slice
    best = Head(stored, CPU, torch.float32, chunk_bytes=chunk_bytes).rank(hidden, 5)
    logprobs = (hidden @ weight.T).log_softmax(-1)
    for row in range(9):
        assert best.ids[row].tolist() == sorted_ids(logprobs[row], 5)
    torch.testing.assert_close(best.logprobs, logprobs.gather(1, best.ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_correction_is_added_before_ranking(streamed: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, hidden = torch.randn(300, 8, generator=generator), torch.randn(4, 8, generator=generator)
    bias = 3 * torch.randn(4, 300, generator=generator)
    head = Head(weight.double() if streamed else weight, CPU, torch.float32, chunk_bytes=1 << 11)
    best = head.rank(hidden, 4, lambda first, stop: bias[:, first:stop])
    logits = hidden @ weight.T + bias
    for row in range(4):
        assert best.ids[row].tolist() == sorted_ids(logits[row], 4)


def test_embedding_rows_are_gathered_where_the_table_lies_and_scaled() -> None:
    table = torch.arange(12, dtype=torch.bfloat16).reshape(4, 3)
    embedding = Embedding(table, CPU, torch.float32)
    assert embedding.rows(torch.tensor([[2, 0]])).tolist() == [[[6, 7, 8], [0, 1, 2]]]
    assert embedding.scaled(2.0).rows(torch.tensor([1])).tolist() == [[6, 8, 10]]
    assert embedding.rows(torch.tensor([1])).dtype == torch.float32


@pytest.mark.parametrize(("width", "k", "block"), [(4096, 8, 32), (248_320, 8, 256), (96, 5, 16), (248_320, 1024, 16)])
def test_blocks_are_chosen_so_that_both_levels_cost_the_same(width: int, k: int, block: int) -> None:
    assert block_size(width, k) == block
