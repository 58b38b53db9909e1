"""Which conditions a drafter is tried under."""

import pytest

from kit.probe import CARD
from kit.table_services import LIMITS, MODEL, NUMERICS
from tauscope_client.probe.asking import layers_needed
from tauscope_client.probe.condition import DECLARED
from tauscope_client.probe.conditions import plan_conditions
from tauscope_wire.messages import DrafterCard, TargetInfo


def target(num_layers=64, deepest=None):
    return TargetInfo(
        version="0",
        model=MODEL | {"num_layers": num_layers},
        architecture="x",
        layer_types=["x"] * num_layers,
        numerics=NUMERICS,
        mode="cpu",
        mode_cannot=[],
        limits=LIMITS,
        self_tests=[],
        deepest_layer=num_layers - 1 if deepest is None else deepest,
        dtypes=["float32"],
        chat_template=False,
    )


def plan(*, longest=5000, num_layers=64, deepest=None, **card):
    return plan_conditions(DrafterCard(**(CARD | card)), target(num_layers, deepest), longest_text=longest)


def suspects(found, group=None):
    return [one.name for one in found.conditions if one.is_suspect and group in (None, one.group)]


def test_a_block_drafter_is_tried_under_every_kind_of_fault():
    found = plan()
    assert found.conditions[0] == DECLARED
    assert suspects(found, "taps") == ["taps -1", "taps +1"]
    assert suspects(found, "context") == ["context +1", "context -1"]
    assert suspects(found, "layout") == ["layout anchor-first"]
    assert suspects(found, "block") == ["block 2", "block 10"]
    assert suspects(found, "rope") == ["theta 10000", "theta 100000", "theta 500000", "theta 1e+07"]
    assert suspects(found, "window") == ["window 128", "window 512", "window 2048", "window 4096"]
    assert suspects(found, "causal") == ["block causal"]
    assert suspects(found, "norm") == ["states normed"]
    assert suspects(found, "order") == ["swap 1,16", "swap 1,31", "swap 16,31"]
    assert found.left_out == []
    assert [one.name for one in found.conditions if one.group == "tap"] == [
        *("tap 1 zero", "tap 16 zero", "tap 31 zero", "tap 1 mean", "tap 16 mean", "tap 31 mean"),
        *("only tap 31", "no states"),
    ]


def test_every_condition_has_a_name_of_its_own_and_every_suspect_a_meaning_and_advice():
    for found in (
        plan(),
        plan(layout="sequential", windows=[]),
        plan(taps=[63], windows=[{"size": 8, "causal": True}]),
    ):
        names = [one.name for one in found.conditions]
        assert len(set(names)) == len(names)
        assert all(one.meaning and one.advice for one in found.conditions if one.is_suspect)


def test_layers_are_asked_for_once_for_all_conditions():
    found = plan()
    assert layers_needed(DrafterCard(**CARD), found.conditions) == [0, 1, 2, 15, 16, 17, 30, 31, 32]


@pytest.mark.parametrize(
    ("taps", "deepest", "tried", "left_out"),
    [
        ([-1, 5], 63, ["taps +1"], "taps -1: layer -2"),
        ([5, 63], 63, ["taps -1"], "taps +1: layer 64"),
        ([5, 31], 31, ["taps -1"], "taps +1: layer 32"),
    ],
)
def test_a_shift_out_of_what_the_target_holds_is_left_out_and_said(taps, deepest, tried, left_out):
    found = plan(taps=taps, deepest=deepest)
    assert suspects(found, "taps") == tried
    assert found.left_out[0].startswith(left_out)


def test_block_sizes_of_rows_that_see_only_earlier_ones_are_not_tried_and_it_is_said():
    found = plan(windows=[{"size": None, "causal": True}])
    assert suspects(found, "block") == []
    assert "another size changes no draft" in found.left_out[0]


def test_half_a_block_is_judged_by_first_drafts_and_twice_a_block_by_all():
    counts = {one.name: one.counts for one in plan().conditions}
    assert (counts.pop("block 2"), counts.pop("block 10")) == ("first", "uncut")
    assert set(counts.values()) == {"accepted"}


def test_the_final_norm_is_suspected_only_of_a_drafter_that_taps_the_last_layer():
    assert "final norm" in suspects(plan(taps=[5, 63]))
    assert "final norm" not in suspects(plan(taps=[5, 62]))


def test_windows_are_tried_around_the_declared_one():
    found = plan(windows=[{"size": 64, "causal": True}, {"size": None, "causal": False}])
    assert suspects(found, "window") == ["window full", "window 32", "window 128"]
    assert suspects(found, "causal") == ["block bidirectional", "block causal"]


def test_windows_longer_than_every_text_are_left_out_and_said():
    found = plan(longest=100)
    assert suspects(found, "window") == []
    assert "100 tokens" in found.left_out[0]


def test_a_drafter_without_a_block_is_not_asked_about_blocks_and_it_is_said():
    found = plan(layout="sequential", windows=[], family="eagle3")
    assert found.left_out == [
        "context, layout, block and window: family eagle3 drafts token after token, not in blocks"
    ]
    assert {one.group for one in found.conditions if one.is_suspect} == {"taps", "rope", "norm", "order"}


def test_declared_scaling_of_the_rope_is_doubted():
    assert "rope unscaled" in suspects(plan(rope={"theta": 1e7, "dim": 8, "kind": "yarn"}))
    assert "theta 1e+07" not in suspects(plan(rope={"theta": 1e7, "dim": 8, "kind": "yarn"}))
