from typing import Any

import numpy as np
import pytest

from tauscope_client.metrics.trace import Trace


def fields(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "prompt_id": "p",
        "token_ids": [5, 6, 1, 2, 3],
        "response_start": 2,
        "anchors": [2, 3],
        "draft_ids": [[1, 2], [3, 4]],
        "top_ids": [[[1, 9], [2, 9]], [[3, 9], [4, 9]]],
        "top_logprobs": np.tile(np.float32([-0.1, -3.0]), (2, 2, 1)),
    }
    return base | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [[1]]}, r"token_ids has shape \[1, 1\]"),
        ({"token_ids": [1.5, 2.0]}, r"token_ids has dtype float64"),
        ({"token_ids": [5, 6, -1, 2, 3]}, r"token_ids holds -1"),
        ({"response_start": 0}, r"response_start=0: .* 5 tokens, so 1\.\.5"),
        ({"response_start": 6}, r"response_start=6"),
        ({"anchors": [3, 2]}, "not strictly ascending"),
        ({"anchors": [3, 3]}, "not strictly ascending"),
        ({"anchors": [1, 2]}, r"anchors span 1\.\.2: allowed are 2\.\.4"),
        ({"anchors": [2, 5]}, r"anchors span 2\.\.5"),
        ({"draft_ids": [[1, 2]]}, r"draft_ids has shape \[1, 2\]: expected \[2, K\]"),
        ({"draft_ids": np.zeros((2, 0), dtype=int)}, r"K at least 1"),
        ({"top_ids": [[[1, 9]], [[3, 9]]]}, r"top_ids has shape \[2, 1, 2\]"),
        ({"top_logprobs": np.zeros((2, 2, 3))}, r"top_logprobs has shape \[2, 2, 3\]"),
        ({"top_logprobs": np.full((2, 2, 2), np.nan)}, "NaN"),
        ({"top_logprobs": np.tile([-3.0, -0.1], (2, 2, 1))}, "rise along a row"),
        ({"max_response_tokens": 0}, "max_response_tokens=0"),
        ({"target_argmax": [1, 2]}, "target_argmax has 2 ids: one for each of the 3 response tokens"),
        ({"tail_ids": [-4]}, "tail_ids holds -4"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trace(**fields(**changes))


def test_arrays_cannot_be_changed_through_the_trace_and_the_callers_stay_writable() -> None:
    ids = np.array([5, 6, 1, 2, 3], dtype=np.int32)
    trace = Trace(**fields(token_ids=ids))
    assert np.shares_memory(trace.token_ids, ids)
    with pytest.raises(ValueError, match="read-only"):
        trace.token_ids[0] = 1
    ids[0] = 4


def test_the_text_ends_at_the_first_of_stop_limit_and_last_token() -> None:
    assert Trace(**fields()).num_response_tokens == 3
    assert Trace(**fields(stop_ids={2})).num_response_tokens == 2
    assert Trace(**fields(stop_ids={2}, max_response_tokens=1)).num_response_tokens == 1
    assert Trace(**fields(stop_ids={8}, tail_ids=[8])).num_response_tokens == 3


def test_the_length_limit_is_the_recorded_one_or_the_length_of_a_text_without_a_stop() -> None:
    assert Trace(**fields()).length_limit == 3
    assert Trace(**fields(stop_ids={3})).length_limit is None
    assert Trace(**fields(stop_ids={3}, max_response_tokens=9)).length_limit == 9
