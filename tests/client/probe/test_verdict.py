"""Verdicts on texts whose truth is known: found, nothing found, cannot tell, and what they say."""

import numpy as np
import pytest

from tauscope_client.probe.condition import DECLARED, Condition
from tauscope_client.probe.effects import Text, effects_of
from tauscope_client.probe.verdict import MIN_GAIN, floor_of, judge
from tauscope_wire.messages import DraftConditions

UP = Condition("taps +1", "taps", DraftConditions(taps=[2]), is_suspect=True, meaning="taps look shifted by one")
DOWN = Condition("taps -1", "taps", DraftConditions(taps=[0]), is_suspect=True, meaning="the other way")
LEAK = Condition("context +1", "context", DraftConditions(context_shift=1), is_suspect=True, meaning="a leak")
WINDOW = Condition("window 9", "window", DraftConditions(sliding_window=9), is_suspect=True, meaning="a window")
HALF = Condition("block 4", "block", DraftConditions(block_size=4), True, "the block looks like 4", "", "first")
TWICE = Condition("block 16", "block", DraftConditions(block_size=16), True, "the block looks like 16", "", "uncut")
ZERO = Condition("tap 1 zero", "tap", DraftConditions(zero_taps=[0]))
SUSPECTS = [UP, DOWN, LEAK, WINDOW]


def texts(mean_by_name, *, num=10, anchors=60, seed=0, spread=0.3):
    """Geometric numbers of accepted drafts, easy and hard texts, with the given means under each condition."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(num):
        ease = rng.lognormal(0, spread)
        accepted = {
            name: np.minimum(rng.geometric(1 / (1 + mean * ease), size=anchors) - 1, 15).astype(np.int32)
            for name, mean in mean_by_name.items()
        }
        found.append(Text(f"t{index}", f"t{index}", accepted))
    return found


def verdict_on(found, conditions=SUSPECTS):
    names = {condition.name: 15 for condition in [DECLARED, *conditions]}
    effects = effects_of(found, conditions, num_drafts=names)
    return judge(effects, num_conversations=len({text.conversation for text in found}))


HEALTHY = {"declared": 3.0, "taps +1": 2.0, "taps -1": 2.0, "context +1": 1.5, "window 9": 1.0}


def test_a_fault_is_found_and_told_with_its_size():
    verdict = verdict_on(texts(HEALTHY | {"taps +1": 5.0}))
    assert verdict.kind == "found"
    assert [effect.condition.name for effect in verdict.findings] == ["taps +1"]
    gain = verdict.findings[0].gain
    assert verdict.headline.startswith(f"taps look shifted by one: {gain:+.2f} accepted tokens per anchor at `taps +1`")


def test_a_healthy_drafter_is_cleared_of_everything():
    verdict = verdict_on(texts(HEALTHY))
    assert verdict.kind == "nothing"
    assert verdict.headline.startswith("nothing found: none of 4 changed conditions")
    assert verdict.findings == verdict.undecided == ()


def test_too_few_texts_cannot_tell_and_say_so():
    verdict = verdict_on(texts(HEALTHY, num=4))
    assert verdict.kind == "open"
    assert verdict.headline.startswith("cannot tell")
    assert "`taps +1` (no interval)" in verdict.headline
    assert "only 4 conversations" in verdict.notes[-1]


def test_a_gain_too_small_to_matter_is_not_called_a_fault():
    # the same text ten times over: a certain difference of one token in sixty anchors
    accepted = np.full(60, 3, np.int32)
    better = accepted.copy()
    better[0] += 1
    found = [Text(f"t{i}", f"t{i}", {"declared": accepted, "taps +1": better, "taps -1": accepted}) for i in range(12)]
    verdict = verdict_on(found, [UP, DOWN])
    assert verdict.kind == "nothing"
    assert 1 / 60 < verdict.floor == pytest.approx(0.08)


def test_the_best_of_a_group_speaks_for_it_and_other_groups_are_named_as_perhaps_the_same_cause():
    found = texts(HEALTHY | {"taps +1": 5.0, "taps -1": 4.4, "context +1": 4.5}, num=20, anchors=200)
    verdict = verdict_on(found)
    assert [effect.condition.name for effect in verdict.findings] == ["taps +1", "context +1"]
    assert "also better than declared: `context +1`" in verdict.notes[0]


def test_a_condition_that_changes_nothing_is_ruled_out_and_does_not_dilute_the_others():
    found = texts({"declared": 3.0, "taps +1": 5.0})
    same = [Text(t.id, t.conversation, dict(t.accepted) | {"window 9": t.accepted["declared"]}) for t in found]
    effects = effects_of(same, [UP, WINDOW], num_drafts={"declared": 15, "taps +1": 15, "window 9": 15})
    alone = effects_of(found, [UP], num_drafts={"declared": 15, "taps +1": 15})
    assert effects[1].is_idle
    assert effects[1].joint_p is None
    assert effects[0].joint_p == alone[0].joint_p


def test_a_drafter_that_accepts_nothing_anywhere_is_not_called_healthy():
    verdict = verdict_on(texts(dict.fromkeys(HEALTHY, 0.01), num=20, anchors=100))
    assert verdict.kind == "nothing"
    assert "next to nothing under every condition" in verdict.notes[0]


def test_ablations_are_never_findings():
    verdict = verdict_on(texts({"declared": 1.0, "tap 1 zero": 5.0, "taps +1": 0.5}), [ZERO, UP])
    assert verdict.kind == "nothing"


def test_conditions_are_compared_over_as_many_drafts():
    found = [Text(f"t{i}", f"t{i}", {"declared": np.full(9, 7), "taps +1": np.full(9, 3)}) for i in range(8)]
    (effect,) = effects_of(found, [UP], num_drafts={"declared": 7, "taps +1": 3})
    assert (effect.declared, effect.accepted, effect.gain) == (3.0, 3.0, 0.0)


def drafted(rates, *, num=30, anchors=60, seed=3):
    """Accepted drafts under each condition: name -> (chance of the first draft, of each later one, drafts)."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(num):
        accepted = {}
        for name, (first, later, width) in rates.items():
            right = rng.random((anchors, width)) < np.array([first, *[later] * (width - 1)])
            accepted[name] = np.cumprod(right, axis=1).sum(axis=1).astype(np.int32)
        found.append(Text(f"t{index}", f"t{index}", accepted))
    return found


def block_verdict(rates):
    widths = {name: width for name, (_, _, width) in rates.items()}
    effects = effects_of(drafted(rates), [HALF, TWICE], num_drafts=widths)
    return judge(effects, num_conversations=30)


def test_a_block_declared_too_large_shows_in_its_first_drafts_though_it_accepts_as_much():
    verdict = block_verdict({"declared": (0.6, 0.7, 7), "block 4": (0.8, 0.5, 3), "block 16": (0.4, 0.7, 15)})
    assert verdict.kind == "found"
    assert verdict.headline.startswith("the block looks like 4: +0.")
    assert "right first drafts per anchor at `block 4`" in verdict.headline


def test_a_block_declared_too_small_is_found_by_what_the_larger_one_accepts():
    verdict = block_verdict({"declared": (0.8, 0.8, 7), "block 4": (0.8, 0.8, 3), "block 16": (0.9, 0.85, 15)})
    assert verdict.kind == "found" and "accepted tokens per anchor at `block 16`" in verdict.headline


def test_a_drafter_that_drafts_beyond_its_block_but_worse_in_it_is_not_accused():
    verdict = block_verdict({"declared": (0.8, 0.8, 7), "block 4": (0.7, 0.8, 3), "block 16": (0.7, 0.9, 15)})
    assert verdict.kind == "nothing"
    assert "at `block 16` it accepts +2." in verdict.notes[0] and "may use the longer block" in verdict.notes[0]


def test_turns_of_one_conversation_count_once():
    found = [
        Text(f"{i}@{turn}", f"c{i}", {"declared": np.full(5, 1), "taps +1": np.full(5, 2)})
        for i in range(3)
        for turn in range(4)
    ]
    (effect,) = effects_of(found, [UP], num_drafts={"declared": 4, "taps +1": 4})
    assert (effect.wins, effect.losses) == (3, 0)
    assert effect.joint_p == 1 / 8


def test_the_floor_is_relative_and_has_a_bottom():
    assert floor_of(9.0) == pytest.approx(0.2)
    assert floor_of(0.0) == MIN_GAIN
