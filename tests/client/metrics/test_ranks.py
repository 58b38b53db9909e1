from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_client.metrics.ranks import NOT_RANKED, label_ranks, rank_histogram, streaks, tie_bounds
from tauscope_client.metrics.trace import Trace

Make = Callable[..., Trace]


@given(seed=st.integers(0, 2**32 - 1), num_drafts=st.integers(1, 5), top_k=st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_ranks_and_streaks_equal_a_search_row_by_row(
    make_random_trace: Make, seed: int, num_drafts: int, top_k: int
) -> None:
    trace = make_random_trace(seed, num_drafts=num_drafts, top_k=top_k)
    found = label_ranks(trace)
    truth = trace.token_ids.tolist() + trace.tail_ids.tolist()
    for row, anchor in enumerate(trace.anchors.tolist()):
        places = []
        for column in range(num_drafts):
            at = anchor + 1 + column
            candidates = trace.top_ids[row, column].tolist()
            is_there = at < len(truth) and truth[at] in candidates
            places.append(candidates.index(truth[at]) if is_there else NOT_RANKED)
        assert found.ranks[row].tolist() == places
        for k in range(1, top_k + 1):
            longest = 0
            while longest < num_drafts and places[longest] < k:
                longest += 1
            assert streaks(found.ranks, k=k)[row] == longest


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_streaks_grow_with_k_and_with_width(make_random_trace: Make, seed: int) -> None:
    ranks = label_ranks(make_random_trace(seed, num_drafts=4, top_k=4)).ranks
    for k in range(1, 4):
        assert (streaks(ranks, k=k) <= streaks(ranks, k=k + 1)).all()
    for width in range(1, 4):
        assert (streaks(ranks, width=width) == np.minimum(streaks(ranks), width)).all()


def test_histogram_counts_each_label_within_the_text_once() -> None:
    ranks = np.array([[0, 2, NOT_RANKED], [1, 0, 0]], dtype=np.int16)
    in_text = np.array([[True, True, True], [True, True, False]])
    assert rank_histogram(ranks, in_text, top_k=2).tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 1]]


def test_tied_candidates_give_an_optimistic_and_a_pessimistic_rank() -> None:
    trace = Trace(
        prompt_id="p",
        token_ids=[9, 1, 2, 3],
        response_start=1,
        anchors=[1, 2],
        draft_ids=[[5], [3]],
        top_ids=[[[5, 2, 6, 7]], [[3, 4, 5, 6]]],
        top_logprobs=[[[-1.0, -2.0, -2.0, -4.0]], [[-1.0, -2.0, -3.0, -4.0]]],
    )
    best, worst = tie_bounds(trace, label_ranks(trace))
    assert best.tolist() == [[2], [1]]
    assert worst.tolist() == [[3], [1]]


def test_a_label_that_is_not_kept_has_no_rank_bounds(make_trace: Make) -> None:
    trace = make_trace({0: (9, 0)}, (1, 2, 3), num_drafts=2, top_k=2)
    best, worst = tie_bounds(trace, label_ranks(trace))
    assert best.tolist()[0] == [NOT_RANKED, 1]
    assert worst.tolist()[0] == [NOT_RANKED, 1]


def test_the_draft_of_a_rescoring_drafter_moves_the_better_candidates_down_by_one() -> None:
    trace = Trace(
        prompt_id="p",
        token_ids=[9, 1, 11, 12, 13, 14],
        response_start=1,
        anchors=[1, 2, 3, 4],
        draft_ids=[[12], [12], [12], [12]],
        top_ids=[[[11, 10, 12, 13]], [[11, 10, 12, 13]], [[11, 10, 12, 13]], [[11, 10, 12, 13]]],
        top_logprobs=np.tile(np.float32([-1, -2, -3, -4]), (4, 1, 1)),
    )
    assert label_ranks(trace).ranks.ravel().tolist() == [1, 0, 3, NOT_RANKED]
