"""Counters of a speculating vLLM: read from text, and differences that can only be one request's."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauscope_client.references.vllm_counters import SpecCounters, read_counters, served_between

TEXT = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 252.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.796066875e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 1764.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 0.0
"""


def test_counters_are_read_by_name_and_position():
    assert read_counters(TEXT) == SpecCounters(252, 1764, 5, (3, 2, 0))


def test_counters_of_two_engines_of_one_server_are_added():
    assert read_counters(TEXT + TEXT.replace('engine="0"', 'engine="1"')) == SpecCounters(504, 3528, 10, (6, 4, 0))


@pytest.mark.parametrize("text", ["", "# nothing\n", "vllm:num_requests_running 0.0\n", "<html>no</html>"])
def test_a_server_without_these_counters_does_not_speculate(text):
    assert read_counters(text) is None


def counters_of(rounds, width):
    """Slow and obvious: count rounds one by one."""
    at = [0] * width
    for accepted in rounds:
        for position in range(accepted):
            at[position] += 1
    return SpecCounters(len(rounds), len(rounds) * width, sum(rounds), tuple(at))


@given(
    st.lists(st.integers(0, 7), max_size=20),
    st.lists(st.integers(0, 7), min_size=1, max_size=20),
)
def test_the_difference_around_a_request_is_its_rounds(earlier, rounds):
    before, after = counters_of(earlier, 7), counters_of(earlier + rounds, 7)
    tokens = 1 + sum(rounds) + len(rounds)
    served = served_between(before, after, completion_tokens=tokens)
    assert served.verify_steps == len(rounds)
    assert served.histogram == [rounds.count(accepted) for accepted in range(8)]
    assert served.accept_length == (sum(rounds) + len(rounds)) / len(rounds)
    assert served.emitted == tokens - 1


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20), st.integers(1, 8))
def test_an_answer_cut_inside_its_last_round_still_has_its_counters(rounds, cut):
    after = counters_of(rounds, 7)
    tokens = 1 + sum(rounds) + len(rounds) - min(cut - 1, rounds[-1])
    assert served_between(counters_of([], 7), after, completion_tokens=tokens).verify_steps == len(rounds)


def test_somebody_elses_request_in_between_drops_the_counters():
    mine, theirs = [3, 0, 2], [7, 7, 7]
    tokens = 1 + sum(mine) + len(mine)
    assert served_between(counters_of([], 7), counters_of(mine, 7), completion_tokens=tokens) is not None
    assert served_between(counters_of([], 7), counters_of(mine + theirs, 7), completion_tokens=tokens) is None


def test_a_request_without_a_round_has_no_counters():
    assert served_between(counters_of([1], 7), counters_of([1], 7), completion_tokens=1) is None


def test_the_histogram_is_the_fall_of_the_positions():
    served = served_between(counters_of([], 3), SpecCounters(10, 30, 12, (6, 4, 2)), completion_tokens=23)
    assert served.histogram == [a - b for a, b in pairwise((10, 6, 4, 2, 0))]
