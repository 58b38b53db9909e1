"""The recipe's serving walk against a loop written by hand, and its intervals."""

import random

import pytest
from deploy.demo.train.evaluation import Round, interval, summarise, tau, walk


def walk_by_hand(drafts, reference):
    """Rounds by comparing token by token; ``drafts[p]`` are the tokens drafted for the anchor at response position
    p.
    """
    rounds, at = [], 0
    while at < len(reference) - 1:
        accepted = 0
        for offset, token in enumerate(drafts[at], 1):
            if at + offset < len(reference) and reference[at + offset] == token:
                accepted += 1
            else:
                break
        emitted = accepted + 1
        if at + emitted > len(reference) - 1:
            emitted = len(reference) - 1 - at
        rounds.append((accepted, emitted))
        at += emitted
    return rounds


def test_the_walk_equals_a_token_by_token_loop():
    rng = random.Random(0)
    for _ in range(200):
        reference = [rng.randrange(2) for _ in range(rng.randrange(1, 20))]
        drafts = [[rng.randrange(2) for _ in range(4)] for _ in reference]
        matches = []
        for at, block in enumerate(drafts):
            following = reference[at + 1 : at + 1 + len(block)]
            count = 0
            while count < len(following) and following[count] == block[count]:
                count += 1
            matches.append(count)
        assert [tuple(r) for r in walk(matches, len(reference))] == walk_by_hand(drafts, reference)


def test_a_response_of_one_token_has_no_rounds():
    assert walk([0], 1) == []


def test_tau_pools_rounds_over_prompts():
    rounds = [[Round(3, 4), Round(0, 1), Round(1, 2)], [Round(2, 3)]]
    summary = summarise(rounds, 4)
    assert tau(rounds) == 2.5
    assert summary["tau_mean_of_means"] == pytest.approx((7 / 3 + 3) / 2, abs=1e-4)
    assert summary["rate"] == [0.75, 0.5, 0.25]
    assert summary["prompts"] == 2


def test_without_rounds_there_is_no_tau_and_no_interval():
    summary = summarise([[], []], 4)
    assert summary["tau_pooled"] is None
    assert summary["interval_95"] is None
    assert summary["empty"] == 2


def test_the_interval_holds_tau_and_shrinks_with_more_prompts():
    rng = random.Random(1)

    def prompts(count):
        return [[Round(a, a + 1) for a in rng.choices(range(4), k=5)] for _ in range(count)]

    few, many = prompts(8), prompts(200)
    for rounds in (few, many):
        low, high = interval(rounds)
        assert low <= tau(rounds) <= high
    assert interval(many)[1] - interval(many)[0] < interval(few)[1] - interval(few)[0]
