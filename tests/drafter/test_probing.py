"""Drafting under changed conditions: each equals a drafter or states that really are so, and none of it is kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drafter import reference
from kit import drafters
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.app import DrafterService, create_app
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.states import StatesSource
from tauscope_wire.connection import Connection
from tauscope_wire.errors import ErrorCode, RequestError, WireError
from tauscope_wire.expectations import DraftExpectation
from tauscope_wire.messages import DraftConditions, DrafterList, DraftRequest, HiddenByHandle, HiddenInline
from tauscope_wire.reader import read_draft
from tauscope_wire.tensors import DraftAnswer

EVERY, IDS = drafters.random_sequence(30, planes=drafters.TARGET_LAYERS)
STATES = EVERY[list(drafters.TAPS)]
TOKENS = IDS.tolist()
START = 12

SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
TWINS: dict[str, dict[str, Any]] = {
    "plain": {},
    "theta": {"rope_theta": 500.0},
    "first": {"sample_from_anchor": True},
    "block": {"block_size": 6},
    "causal": {"is_causal": True},
    "sliding": SLIDING,
    "wider": SLIDING | {"sliding_window": 9},
    "all-slide": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6, "is_causal": False},
    "taps": {"dflash_config": {"target_layer_ids": [2, 4, 5], "mask_token_id": drafters.MASK}},
    "yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
}
"""Configurations of one set of weights."""


@pytest.fixture(scope="module")
def target() -> drafters.StatesServer:
    return drafters.StatesServer(dict(enumerate(EVERY)), TOKENS)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, target: drafters.StatesServer) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("drafters")
    place = open_place(torch.device("cpu"), torch.float32, drafters.write_target(folder / "target"))
    engine = Engine(place, max_batch_anchors=5)
    for name, changes in TWINS.items():
        path = drafters.write_folder(folder / name, drafters.dflash_config(**changes), drafters.dflash_tensors())
        engine.load(name, path, LoadOptions(), roots=None)
    engine.load("words", Path("ngram"), LoadOptions(family="ngram", block_size=4), roots=None)
    with running(target.app()) as target_url, Connection(target_url) as upstream:
        states = StatesSource(upstream)
        app = create_app(DrafterService(engine=engine, states=states, limits=SMALL_LIMITS, version="1"))
        with running(app) as url, Connection(url) as connection:
            yield connection


def ask(service: Connection, conditions: DraftConditions | None = None, **changes: Any) -> DraftAnswer:
    fields = {
        "drafter": "plain",
        "hidden": HiddenByHandle(handle="h"),
        "token_ids": TOKENS,
        "response_start": START,
        "top_k": 5,
        "conditions": conditions,
    }
    request = DraftRequest(**(fields | changes))
    expect = DraftExpectation.of_request(request)
    return service.post_tensors("/draft_block", request, lambda source: read_draft(source, expect=expect))


def on(states: Tensor) -> HiddenInline:
    return HiddenInline(inline=states.contiguous().numpy().tobytes(), dtype="float32")


def assert_same(one: DraftAnswer, other: DraftAnswer) -> None:
    assert np.array_equal(one.top_ids, other.top_ids)
    assert np.array_equal(one.top_logprobs, other.top_logprobs)


@pytest.mark.parametrize(
    ("drafter", "conditions", "twin"),
    [
        ("plain", {"rope_theta": 500.0}, "theta"),
        ("plain", {"layout": "anchor-first"}, "first"),
        ("first", {"layout": "fill-in"}, "plain"),
        ("plain", {"block_size": 6}, "block"),
        ("plain", {"causal": True}, "causal"),
        ("causal", {"causal": False}, "plain"),
        ("plain", {"sliding_window": 6}, "all-slide"),
        ("sliding", {"sliding_window": 9}, "wider"),
        ("sliding", {"sliding_window": 0, "causal": False}, "plain"),
        ("plain", {"taps": [2, 4, 5]}, "taps"),
        ("yarn", {"plain_rope": True}, "plain"),
    ],
)
def test_a_condition_drafts_what_a_drafter_drafts_that_declares_it(
    service: Connection, drafter: str, conditions: dict[str, Any], twin: str
) -> None:
    changed = ask(service, DraftConditions(**conditions), drafter=drafter)
    assert_same(changed, ask(service, drafter=twin))
    assert not np.array_equal(changed.top_logprobs, ask(service, drafter=drafter).top_logprobs)
    own = ask(service, drafter=twin).drafter
    assert (changed.drafter.layout, changed.drafter.drafts, changed.drafter.block_size, changed.drafter.taps) == (
        own.layout,
        own.drafts,
        own.block_size,
        own.taps,
    )
    assert changed.drafter.conditions == conditions


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shifted_context_is_the_one_the_slow_reference_sees(service: Connection, shift: int) -> None:
    anchors = [1, START, len(TOKENS) - 2]
    answer = ask(service, DraftConditions(context_shift=shift), anchors=anchors)
    tables, config = drafters.shared_tables(), drafters.dflash_config()
    for row, p in enumerate(anchors):
        block = reference.dflash_block(
            drafters.dflash_tensors(), config, STATES, IDS, p, embedding=tables["embed_tokens.weight"], shift=shift
        )
        logprobs = reference.log_softmax(block[1:] @ tables["lm_head.weight"].double().T)
        want = [reference.ranked(r, 5) for r in logprobs]
        assert answer.top_ids[row].tolist() == [ids.tolist() for ids, _ in want]
        # float32 through two layers against float64
        np.testing.assert_allclose(answer.top_logprobs[row], torch.stack([v for _, v in want]), rtol=2e-4, atol=2e-4)


def _rms(x: Tensor) -> Tensor:
    return x.double().pow(2).mean(-1, keepdim=True).sqrt()


def _swapped(states: Tensor) -> Tensor:
    return states[[2, 1, 0]]


def _mean(states: Tensor) -> Tensor:
    out = states.clone()
    # the service fetches the positions that the last anchor needs, and no more
    out[1] = states[1, : len(TOKENS) - 2].mean(0)
    return out


@pytest.mark.parametrize(
    ("conditions", "by_hand"),
    [
        ({"swap_taps": [(0, 2)]}, _swapped),
        ({"mean_taps": [1]}, _mean),
        ({"state_norm": "rms"}, lambda states: (states / _rms(states)).float()),
    ],
)
def test_changed_states_draft_what_states_changed_by_hand_draft(
    service: Connection, conditions: dict[str, Any], by_hand: Any
) -> None:
    changed = ask(service, DraftConditions(**conditions))
    same = ask(service, hidden=on(by_hand(STATES)))
    assert np.array_equal(changed.top_ids, same.top_ids)
    # float32 against float64 in the change itself
    np.testing.assert_allclose(changed.top_logprobs, same.top_logprobs, atol=2e-4)


def test_a_zeroed_tap_takes_its_columns_out_of_the_drafter(service: Connection) -> None:
    answer = ask(service, DraftConditions(zero_taps=[0, 2]), anchors=[START])
    weights = drafters.dflash_tensors()
    weights["fc.weight"] = weights["fc.weight"].clone()
    for place in (0, 2):
        weights["fc.weight"][:, place * drafters.HIDDEN : (place + 1) * drafters.HIDDEN] = 0
    tables = drafters.shared_tables()
    block = reference.dflash_block(
        weights, drafters.dflash_config(), STATES, IDS, START, embedding=tables["embed_tokens.weight"]
    )
    logprobs = reference.log_softmax(block[1:] @ tables["lm_head.weight"].double().T)
    want = torch.stack([reference.ranked(r, 5)[1] for r in logprobs])
    np.testing.assert_allclose(answer.top_logprobs[0], want, rtol=2e-4, atol=2e-4)


def test_final_norm_norms_the_deepest_plane_alone(service: Connection) -> None:
    answer = ask(service, DraftConditions(state_norm="final_norm", taps=[5, 1, 4]))
    weight = 1 + 0.1 * torch.randn(drafters.HIDDEN, generator=torch.Generator().manual_seed(5))  # of `write_target`
    by_hand = EVERY[[5, 1, 4]].clone()
    by_hand[0] = (weight * EVERY[5] / (_rms(EVERY[5]).pow(2) + 1e-6).sqrt()).float()
    np.testing.assert_allclose(answer.top_logprobs, ask(service, hidden=on(by_hand)).top_logprobs, atol=2e-4)


def test_noise_has_the_size_asked_for_and_is_the_same_for_the_same_seed_and_position(service: Connection) -> None:
    conditions = DraftConditions(noise=0.05, noise_seed=3)
    answer = ask(service, conditions)
    assert_same(answer, ask(service, conditions))
    # an anchor asked alone sees a shorter context with the same noise
    alone = ask(service, conditions, anchors=[START + 3])
    assert np.array_equal(alone.top_ids[0], answer.top_ids[3])
    np.testing.assert_allclose(alone.top_logprobs[0], answer.top_logprobs[3], atol=1e-5)  # another batch shape
    assert not np.array_equal(answer.top_logprobs, ask(service, DraftConditions(noise=0.05)).top_logprobs)
    plain = ask(service).top_logprobs
    moved = [np.abs(ask(service, DraftConditions(noise=n)).top_logprobs - plain).mean() for n in (0.001, 0.01, 0.1)]
    assert 5 < moved[1] / moved[0] < 20  # small noise acts linearly
    assert moved[2] > moved[1]


def test_what_was_fused_under_conditions_never_answers_a_plain_request(
    service: Connection, target: drafters.StatesServer
) -> None:
    handle = HiddenByHandle(handle="kept")
    before = ask(service, hidden=handle)
    fetched = len(target.served)
    changed = ask(service, DraftConditions(mean_taps=[0, 1, 2]), hidden=handle)
    assert not np.array_equal(before.top_ids, changed.top_ids)
    assert len(target.served) == fetched + 1  # and what was fused plainly does not answer a changed one
    assert_same(before, ask(service, hidden=handle))
    assert len(target.served) == fetched + 1
    first_changed = HiddenByHandle(handle="other way round")
    ask(service, DraftConditions(mean_taps=[0, 1, 2]), hidden=first_changed)
    assert_same(before, ask(service, hidden=first_changed))


def test_conditions_that_change_nothing_are_the_declared_ones(
    service: Connection, target: drafters.StatesServer
) -> None:
    handle = HiddenByHandle(handle="nothing")
    plain = ask(service, hidden=handle)
    fetched = len(target.served)
    answer = ask(service, DraftConditions(), hidden=handle)
    assert_same(plain, answer)
    assert answer.drafter.conditions == {}
    assert len(target.served) == fetched


def test_a_reader_that_asked_for_no_conditions_refuses_an_answer_under_some(service: Connection) -> None:
    request = DraftRequest(
        drafter="plain",
        hidden=HiddenByHandle(handle="h"),
        token_ids=TOKENS,
        response_start=START,
        conditions=DraftConditions(rope_theta=500.0),
    )
    plain = DraftExpectation.of_request(request.model_copy(update={"conditions": None}))
    with pytest.raises(WireError, match=r"rope_theta.*in force, none asked for") as caught:
        service.post_tensors("/draft_block", request, lambda source: read_draft(source, expect=plain))
    assert caught.value.code == ErrorCode.LABEL_MISMATCH


@pytest.mark.parametrize(
    ("drafter", "conditions", "words"),
    [
        ("plain", {"taps": [1, 2]}, ["[1, 2]", "3 different planes"]),
        ("plain", {"taps": [1, 2, 2]}, ["3 different planes"]),
        ("plain", {"zero_taps": [3]}, ["zero_taps", "place 3", "0..2"]),
        ("plain", {"swap_taps": [(0, 9)]}, ["swap_taps", "place 9"]),
        ("words", {"context_shift": 1}, ["context_shift", "without a block"]),
        ("words", {"rope_theta": 9.0}, ["rope_theta", "no rotary"]),
        ("words", {"mean_taps": [0]}, ["reads no states"]),
    ],
)
def test_a_condition_that_does_not_apply_is_refused_in_words(
    service: Connection, drafter: str, conditions: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        ask(service, DraftConditions(**conditions), drafter=drafter)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_cards_say_what_every_layer_sees(service: Connection) -> None:
    cards = {card.name: card for card in service.get_json("/drafters", DrafterList).drafters}
    assert [window["size"] for window in cards["sliding"].windows] == [6, None]
    assert [window["causal"] for window in cards["sliding"].windows] == [True, False]
    assert cards["words"].windows == []
