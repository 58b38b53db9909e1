from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_client.metrics.trace import Trace
from tauscope_client.metrics.walk import Clip, walk

Make = Callable[..., Trace]
CLIPS: tuple[Clip, ...] = ("none", "stop", "stop+length")
HIT, MISS = 0, 99


def slow_rounds(trace: Trace, *, width: int, k: int, clip: Clip) -> tuple[list[tuple[int, int, int]], bool]:
    """Decode token by token: (anchor, accepted, emitted) of each round, and whether the last round was clear."""
    start = trace.response_start
    response, tail = trace.token_ids[start:].tolist(), trace.tail_ids.tolist()
    truth = response + tail

    def is_over(text: list[int]) -> bool:
        is_limited = trace.max_response_tokens is not None and len(text) >= trace.max_response_tokens
        return is_limited or len(text) >= len(response) or (bool(text) and text[-1] in trace.stop_ids)

    rounds: list[tuple[int, int, int]] = []
    text = truth[:1]
    while text and not is_over(text):
        anchor = start + len(text) - 1
        row = trace.anchors.tolist().index(anchor)
        accepted, emitted, is_cut = 0, 0, False
        counted, served = list(text), list(text)  # what this clip counts; what a server would return
        for column in range(width):
            if len(counted) == len(truth):
                return [*rounds, (anchor, accepted, accepted + 1)], False
            token = truth[len(counted)]
            if token not in trace.top_ids[row, column, :k].tolist():
                break
            counted.append(token)
            accepted += 1
            if not is_over(served):
                served.append(token)
            if (clip == "stop+length" and is_over(counted)) or (clip == "stop" and token in trace.stop_ids):
                is_cut = True
                break
        emitted = accepted if is_cut else accepted + 1
        if not is_cut and not is_over(served):
            served.append(truth[len(served)])
        rounds.append((anchor, accepted, emitted))
        text = served
    return rounds, True


@given(
    seed=st.integers(0, 2**32 - 1),
    num_drafts=st.integers(1, 5),
    top_k=st.integers(1, 4),
    clip=st.sampled_from(CLIPS),
    data=st.data(),
)
@settings(max_examples=400, deadline=None)
def test_walk_equals_a_token_by_token_loop(
    make_random_trace: Make, *, seed: int, num_drafts: int, top_k: int, clip: Clip, data: st.DataObject
) -> None:
    trace = make_random_trace(seed, num_drafts=num_drafts, top_k=top_k)
    width, k = data.draw(st.integers(1, num_drafts)), data.draw(st.integers(1, top_k))
    expected, is_determined = slow_rounds(trace, width=width, k=k, clip=clip)
    found = walk(trace, width=width, k=k, clip=clip)
    assert list(zip(found.anchors, found.accepted, found.emitted, strict=True)) == expected
    assert found.is_determined == is_determined


@given(seed=st.integers(0, 2**32 - 1), num_drafts=st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_full_width_is_the_walk_itself_and_top_1_is_the_plain_walk(
    make_random_trace: Make, seed: int, num_drafts: int
) -> None:
    trace = make_random_trace(seed, num_drafts=num_drafts, top_k=3)
    assert walk(trace) == walk(trace, width=num_drafts) == walk(trace, k=1)


@given(seed=st.integers(0, 2**32 - 1), num_drafts=st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_emitted_tokens_add_up_to_the_response_after_its_first_token(
    make_random_trace: Make, seed: int, num_drafts: int
) -> None:
    trace = make_random_trace(seed, num_drafts=num_drafts, top_k=2)
    for width in range(1, num_drafts + 1):
        assert sum(walk(trace, width=width).emitted) == max(trace.num_response_tokens - 1, 0)


def test_a_stop_inside_the_accepted_drafts_cuts_the_round_and_gives_no_bonus(make_trace: Make) -> None:
    trace = make_trace({0: (HIT, HIT, HIT, HIT)}, (1, 2, 7), num_drafts=4, stop_ids={7}, tail_ids=(3, 4, 5))
    assert walk(trace).accepted == (2,)
    assert walk(trace).emitted == (2,)
    assert walk(trace, clip="stop").emitted == (2,)
    assert walk(trace, clip="none").accepted == (4,)
    assert walk(trace, clip="none").emitted == (5,)


def test_a_stop_that_comes_as_the_bonus_counts_as_the_bonus(make_trace: Make) -> None:
    trace = make_trace({0: (HIT, MISS, MISS)}, (1, 2, 7), num_drafts=3, stop_ids={7})
    for clip in CLIPS:
        assert walk(trace, clip=clip).accepted == (1,)
        assert walk(trace, clip=clip).emitted == (2,)
        assert walk(trace, clip=clip).is_determined


def test_a_drafted_stop_leaves_the_unclipped_round_open_without_a_tail(make_trace: Make) -> None:
    trace = make_trace({0: (HIT, HIT, HIT)}, (1, 2, 7), num_drafts=3, stop_ids={7})
    assert walk(trace).emitted == (2,)
    assert walk(trace, clip="stop").is_determined
    assert not walk(trace, clip="none").is_determined


def test_the_length_limit_cuts_the_round_and_leaves_fewer_drafts_to_verify(make_trace: Make) -> None:
    places = {0: (HIT, MISS, MISS), 2: (HIT, HIT, HIT)}
    trace = make_trace(places, (1, 2, 3, 4, 5), num_drafts=3, stop_ids={7}, max_response_tokens=5, tail_ids=(6, 8))
    found = walk(trace)
    assert (found.accepted, found.emitted, found.drafted) == ((1, 2), (2, 2), (3, 2))
    assert walk(trace, clip="stop").emitted == walk(trace, clip="none").emitted == (2, 4)


def test_a_stop_past_the_length_limit_cuts_only_the_stop_clip(make_trace: Make) -> None:
    trace = make_trace(
        {0: (HIT,) * 5}, (1, 2, 3), num_drafts=5, stop_ids={7}, max_response_tokens=3, tail_ids=(4, 7, 5, 6)
    )
    assert walk(trace).emitted == (2,)
    assert walk(trace, clip="stop").emitted == (4,)
    assert walk(trace, clip="none").emitted == (6,)


def test_a_text_cut_by_something_unrecorded_ends_where_it_ends(make_trace: Make) -> None:
    trace = make_trace({0: (HIT, HIT, HIT)}, (1, 2, 3), num_drafts=3, stop_ids={7})
    assert walk(trace).emitted == (2,)
    assert walk(trace).drafted == (2,)
    assert not walk(trace, clip="stop").is_determined


def test_a_last_round_that_misses_before_the_end_is_clear_under_every_clip(make_trace: Make) -> None:
    trace = make_trace({0: (HIT, MISS, HIT)}, (1, 2, 3), num_drafts=3, stop_ids={7}, max_response_tokens=3)
    assert all(walk(trace, clip=clip).emitted == (2,) and walk(trace, clip=clip).is_determined for clip in CLIPS)


@pytest.mark.parametrize("response", [(7,), (1,), (), (7, 1, 2)])
def test_a_response_that_is_over_after_its_first_token_has_no_rounds(
    make_trace: Make, response: tuple[int, ...]
) -> None:
    trace = make_trace({}, response, num_drafts=3, stop_ids={7})
    assert trace.is_empty
    assert walk(trace).num_rounds == 0
    assert walk(trace).tau is None


def test_what_follows_a_stop_inside_the_response_is_not_walked(make_trace: Make) -> None:
    trace = make_trace({0: (MISS,), 1: (HIT,)}, (1, 2, 7, 3, 4), num_drafts=1, stop_ids={7})
    assert walk(trace).anchors == (2, 3)
    assert trace.num_response_tokens == 3


def test_a_narrower_width_visits_other_anchors(make_trace: Make) -> None:
    trace = make_trace({0: (HIT, HIT), 1: (HIT, HIT), 2: (HIT, HIT)}, (1, 2, 3, 7), num_drafts=2, stop_ids={7})
    assert walk(trace).anchors == (2,)
    assert walk(trace, width=1).anchors == (2, 4)


def test_top_k_counts_a_label_that_is_not_the_draft(make_trace: Make) -> None:
    trace = make_trace({0: (1, 0, 3)}, (1, 2, 3, 4, 7), num_drafts=3, top_k=4, stop_ids={7})
    assert walk(trace, k=1).accepted[0] == 0
    assert walk(trace, k=2).accepted[0] == 2
    assert walk(trace, k=4).accepted[0] == 3


def test_a_drafter_that_rescores_its_candidates_keeps_its_own_choice_in_first_place(make_trace: Make) -> None:
    plain = make_trace({0: (1,), 1: (0,)}, (1, 2, 7), num_drafts=1, top_k=3, stop_ids={7})
    rescored = Trace(
        prompt_id="p",
        token_ids=plain.token_ids,
        response_start=2,
        anchors=plain.anchors,
        draft_ids=plain.top_ids[:, :, 1],
        top_ids=plain.top_ids,
        top_logprobs=plain.top_logprobs,
        stop_ids=frozenset({7}),
    )
    assert walk(rescored, k=1).accepted == (1,)
    assert walk(rescored, k=1).emitted == (2,)
    assert walk(plain, k=1).accepted == (0, 1)


def test_an_anchor_the_walk_needs_but_does_not_have_is_named(make_trace: Make) -> None:
    whole = make_trace({0: (MISS,), 1: (HIT,)}, (1, 2, 3, 7), num_drafts=1, stop_ids={7})
    holes = Trace(
        prompt_id="holes",
        token_ids=whole.token_ids,
        response_start=2,
        anchors=whole.anchors[[0, 2]],
        draft_ids=whole.draft_ids[[0, 2]],
        top_ids=whole.top_ids[[0, 2]],
        top_logprobs=whole.top_logprobs[[0, 2]],
    )
    with pytest.raises(ValueError, match=r"prompt 'holes': the walk visits position 3.*2 anchors"):
        walk(holes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 4}, r"width=4: the drafter drafts 3 tokens, so 1\.\.3"),
        ({"width": 0}, r"width=0"),
        ({"k": 2}, r"k=2: the trace keeps 1 candidates a row"),
    ],
)
def test_options_out_of_range_are_refused(make_trace: Make, options: dict[str, int], message: str) -> None:
    trace = make_trace({}, (1, 2, 3), num_drafts=3)
    with pytest.raises(ValueError, match=message):
        walk(trace, **options)


def test_sparse_anchors_that_cover_the_walk_are_enough(make_trace: Make) -> None:
    whole = make_trace({0: (HIT, HIT), 3: (HIT, MISS)}, (1, 2, 3, 4, 5, 7), num_drafts=2, stop_ids={7})
    keep = np.array([0, 3])
    sparse = Trace(
        prompt_id="p",
        token_ids=whole.token_ids,
        response_start=2,
        anchors=whole.anchors[keep],
        draft_ids=whole.draft_ids[keep],
        top_ids=whole.top_ids[keep],
        top_logprobs=whole.top_logprobs[keep],
        stop_ids=frozenset({7}),
    )
    assert walk(sparse) == walk(whole)
