"""Cutting another loop's rounds at a length limit; fast, no engine."""

from engines.walks import cut_rounds


def test_the_first_token_comes_from_prefill_and_the_last_round_is_cut():
    # 96 tokens: one from prefill, 95 from rounds.
    assert cut_rounds([50, 40, 8], 96) == [50, 40, 5]


def test_rounds_after_the_limit_are_left_out():
    assert cut_rounds([4, 4, 4, 4], 9) == [4, 4]


def test_a_text_that_ended_early_is_left_as_it_is():
    assert cut_rounds([3, 1, 2], 96) == [3, 1, 2]


def test_one_token_has_no_rounds():
    assert cut_rounds([4], 1) == []
