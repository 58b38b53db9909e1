"""The drafter service over real HTTP: drafting by handle and inline, the registry, and what bad requests get."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafter import reference
from kit import drafters
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.app import DrafterService, create_app
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.states import StatesSource
from tauscope_wire.connection import Connection
from tauscope_wire.errors import (
    CheckpointError,
    ErrorCode,
    GoneError,
    MismatchError,
    NotFoundError,
    PermissionDeniedError,
    RequestError,
    TauscopeError,
    TooLargeError,
)
from tauscope_wire.expectations import DraftExpectation
from tauscope_wire.messages import (
    DrafterCard,
    DrafterList,
    DrafterLoadRequest,
    DrafterServiceInfo,
    DraftRequest,
    HiddenByHandle,
    HiddenInline,
)
from tauscope_wire.reader import read_draft
from tauscope_wire.tensors import DraftAnswer

STATES, IDS = drafters.random_sequence(30)
TOKENS = IDS.tolist()
START = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafters")
    drafters.write_folder(folder / "good", drafters.dflash_config(), drafters.dflash_tensors())
    drafters.write_folder(folder / "other", drafters.dflash_config(), drafters.dflash_tensors(seed=1))
    deep = {"target_layer_ids": [1, 3, 70], "mask_token_id": 7}
    config = drafters.dflash_config(dflash_config=deep, num_target_layers=80)
    drafters.write_folder(folder / "deep", config, drafters.dflash_tensors())
    return folder


@pytest.fixture(scope="module")
def target() -> drafters.StatesServer:
    return drafters.StatesServer(dict(zip(drafters.TAPS, STATES, strict=True)), TOKENS)


@pytest.fixture(scope="module")
def engine(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = drafters.write_target(tmp_path_factory.mktemp("target"))
    engine = Engine(open_place(torch.device("cpu"), torch.float32, folder), max_batch_anchors=5)
    engine.load("good", root / "good", LoadOptions(), roots=None)
    return engine


@pytest.fixture(scope="module")
def service(root: Path, target: drafters.StatesServer, engine: Engine) -> Iterator[Connection]:
    with running(target.app()) as target_url, Connection(target_url) as upstream:
        app = create_app(
            DrafterService(
                engine=engine, states=StatesSource(upstream), limits=SMALL_LIMITS, version="1.2.3", roots=(root,)
            )
        )
        with running(app) as url, Connection(url) as connection:
            yield connection


def draft(service: Connection, **changes: Any) -> DraftAnswer:
    fields = {
        "drafter": "good",
        "hidden": HiddenByHandle(handle="h1"),
        "token_ids": TOKENS,
        "response_start": START,
        "top_k": 5,
    }
    request = DraftRequest(**(fields | changes))
    expect = DraftExpectation.of_request(request)
    return service.post_tensors("/draft_block", request, lambda source: read_draft(source, expect=expect))


def inline(dtype: str = "float32", rows: int | None = None) -> HiddenInline:
    states = STATES[:, :rows].contiguous()
    raw = states.numpy() if dtype == "float32" else states.to(torch.bfloat16).view(torch.uint16).numpy()
    return HiddenInline(inline=raw.tobytes(), dtype=dtype)


def test_drafts_by_handle_are_those_of_the_slow_reference(service: Connection) -> None:
    answer = draft(service)
    assert answer.anchors.tolist() == list(range(START, len(TOKENS) - 1))
    assert np.array_equal(answer.token_ids, answer.top_ids[:, :, 0])
    tables, config = drafters.shared_tables(), drafters.dflash_config()
    for row, p in ((0, START), (16, len(TOKENS) - 2)):
        block = reference.dflash_block(
            drafters.dflash_tensors(), config, STATES, IDS, p, embedding=tables["embed_tokens.weight"]
        )
        logprobs = reference.log_softmax(block[1:] @ tables["lm_head.weight"].double().T)
        want = [reference.ranked(r, 5) for r in logprobs]
        assert answer.top_ids[row].tolist() == [ids.tolist() for ids, _ in want]
        # float32 through two layers against float64
        np.testing.assert_allclose(answer.top_logprobs[row], torch.stack([v for _, v in want]), rtol=2e-4, atol=2e-4)
    assert answer.drafter.taps == list(drafters.TAPS)
    assert answer.numerics.compute_dtype == "float32"


def test_inline_states_draft_the_same_as_a_handle(service: Connection) -> None:
    by_handle = draft(service)
    answer = draft(service, hidden=inline(rows=len(TOKENS) - 2))
    assert np.array_equal(answer.top_ids, by_handle.top_ids)
    assert np.array_equal(answer.top_logprobs, by_handle.top_logprobs)
    # BF16 keeps 8 bits of every state
    rounded = draft(service, hidden=inline("bfloat16"))
    np.testing.assert_allclose(rounded.top_logprobs, by_handle.top_logprobs, atol=0.1)


def test_chosen_anchors_are_rows_of_the_full_answer(service: Connection) -> None:
    full = draft(service)
    chosen = draft(service, anchors=[START + 1, START + 7, len(TOKENS) - 1])
    assert chosen.anchors.tolist() == [START + 1, START + 7, len(TOKENS) - 1]
    assert np.array_equal(chosen.top_ids[:2], full.top_ids[[1, 7]])


def test_a_handle_is_fetched_once_for_many_requests(service: Connection, target: drafters.StatesServer) -> None:
    before = len(target.served)
    for _ in range(3):
        draft(service, hidden=HiddenByHandle(handle="again"))
    draft(service, hidden=HiddenByHandle(handle="again"), anchors=[START])
    assert target.served[before:] == ["again"]
    draft(service, hidden=HiddenByHandle(handle="again"), anchors=[len(TOKENS) - 1])  # needs one position more
    assert target.served[before:] == ["again", "again"]


@pytest.mark.parametrize("position", [0, START, len(TOKENS) - 1])
def test_ids_of_another_sequence_are_refused_whether_or_not_the_handle_was_fused(
    service: Connection, position: int
) -> None:
    other = [*TOKENS]
    other[position] = (other[position] + 1) % drafters.VOCAB
    handle = HiddenByHandle(handle=f"fused-{position}")
    refusals = []
    for _ in range(2):
        with pytest.raises(RequestError, match=f"from position {position} on") as caught:
            draft(service, hidden=handle, token_ids=other)
        refusals.append((caught.value.code, caught.value.message))
        draft(service, hidden=handle)  # fused and kept from here on
    assert refusals[0] == refusals[1]


def test_a_response_of_one_token_has_no_anchors(service: Connection) -> None:
    answer = draft(service, response_start=len(TOKENS) - 1)
    assert answer.anchors.size == 0
    assert answer.top_ids.shape == (0, 3, 5)


@pytest.mark.parametrize(
    ("changes", "kind", "code", "words"),
    [
        ({"drafter": "nobody"}, NotFoundError, ErrorCode.DRAFTER_UNKNOWN, ["nobody", "good"]),
        ({"token_ids": []}, RequestError, ErrorCode.POSITION_OUT_OF_RANGE, ["0 tokens"]),
        ({"response_start": 30}, RequestError, ErrorCode.POSITION_OUT_OF_RANGE, ["response_start=30", "30 tokens"]),
        ({"anchors": [30]}, RequestError, ErrorCode.ANCHOR_OUT_OF_RANGE, ["anchors[0]=30"]),
        ({"anchors": [5, 5]}, RequestError, ErrorCode.ANCHOR_OUT_OF_RANGE, ["anchors[1]=5", "ascend"]),
        ({"token_ids": [96, *TOKENS[1:]]}, RequestError, ErrorCode.TOKEN_OUT_OF_RANGE, ["token_ids[0]=96", "0..95"]),
        ({"token_ids": [5] * 3000}, TooLargeError, ErrorCode.PROMPT_TOO_LONG, ["3000", "2048"]),
        ({"top_k": 65}, TooLargeError, ErrorCode.LIMIT_EXCEEDED, ["65", "64"]),
        ({"token_ids": [(t + 1) % 96 for t in TOKENS]}, RequestError, ErrorCode.INVALID_REQUEST, ["differ", "0"]),
        ({"hidden": HiddenInline(inline=b"12345", dtype="float32")}, RequestError, None, ["5 bytes", "384"]),
        ({"hidden": inline(rows=4)}, RequestError, ErrorCode.POSITION_OUT_OF_RANGE, ["4 positions", "28"]),
    ],
)
def test_a_wrong_request_gets_one_clear_error(
    service: Connection, changes: dict[str, Any], kind: type[TauscopeError], code: ErrorCode | None, words: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        # a handle of its own: what was fused for other tests must not answer
        draft(service, **({"hidden": HiddenByHandle(handle=f"new-{hash(str(changes))}")} | changes))
    assert code is None or caught.value.code == code
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(("value", "code"), [(float("nan"), "non_finite_states"), (0.0, "zero_states")])
def test_states_that_cannot_be_right_are_refused(service: Connection, value: float, code: str) -> None:
    states = STATES.clone()
    states[1, 6] = value
    with pytest.raises(RequestError, match="plane 1 at position 6") as caught:
        draft(service, hidden=HiddenInline(inline=states.numpy().tobytes(), dtype="float32"))
    assert caught.value.code == code


def test_an_answer_over_the_limit_is_refused_before_anything_is_computed(
    root: Path, engine: Engine, target: drafters.StatesServer
) -> None:
    limits = SMALL_LIMITS.model_copy(update={"max_answer_bytes": 1000})
    app = create_app(DrafterService(engine=engine, states=StatesSource(None), limits=limits, version="1"))
    with running(app) as url, Connection(url) as small, pytest.raises(TooLargeError, match="fewer anchors") as caught:
        draft(small)
    assert caught.value.code == ErrorCode.ANSWER_TOO_LARGE


def test_a_gone_handle_is_passed_on_as_gone(service: Connection, target: drafters.StatesServer) -> None:
    target.gone.add("lost")
    with pytest.raises(GoneError):
        draft(service, hidden=HiddenByHandle(handle="lost"))


def test_another_target_is_a_mismatch_with_both_sides(service: Connection, target: drafters.StatesServer) -> None:
    own = target.model
    target.model = own.model_copy(update={"vocab_size": 97})
    try:
        with pytest.raises(MismatchError, match="96 tokens, the target's 97") as caught:
            draft(service, hidden=HiddenByHandle(handle="foreign"))
        assert caught.value.details["drafter"]["vocab_size"] == 96
        assert caught.value.details["target"]["vocab_size"] == 97
    finally:
        target.model = own


def test_a_drafter_that_reads_no_states_is_compared_with_the_target_all_the_same(
    service: Connection, target: drafters.StatesServer, engine: Engine
) -> None:
    engine.load("lookup", Path("-"), LoadOptions(family="ngram", block_size=4), roots=None)
    own = target.model
    try:
        fitting = draft(service, drafter="lookup", hidden=HiddenByHandle(handle="any"))
        assert not fitting.drafter.warnings
        target.model = own.model_copy(update={"vocab_size": 97})
        with pytest.raises(MismatchError, match="96 tokens, the target's 97") as caught:
            draft(service, drafter="lookup")
        assert caught.value.details["drafter"]["name"] == "lookup"
        target.model = own.model_copy(update={"hidden_size": 64})  # which it does not read
        assert draft(service, drafter="lookup").token_ids.tolist() == fitting.token_ids.tolist()
    finally:
        target.model = own
        engine.unload("lookup")


def test_a_drafter_that_could_not_be_compared_says_so_and_drafts(engine: Engine) -> None:
    engine.load("lookup2", Path("-"), LoadOptions(family="ngram", block_size=4), roots=None)
    try:
        with Connection("http://127.0.0.1:9", timeout_s=5) as nobody:
            service = DrafterService(engine=engine, states=StatesSource(nobody), limits=SMALL_LIMITS, version="1")
            with running(create_app(service)) as url, Connection(url) as connection:
                answer = draft(connection, drafter="lookup2")
    finally:
        engine.unload("lookup2")
    assert len(answer.token_ids) and "was not compared with the target" in answer.drafter.warnings[0]


def test_drafters_come_and_go_at_run_time(service: Connection, root: Path) -> None:
    card = service.post_json("/drafters", DrafterLoadRequest(name="b", path=str(root / "other")), DrafterCard)
    assert (card.family, card.format, card.from_target) == ("dflash", "z-lab", ["embed_tokens", "lm_head"])
    assert card.memory_bytes == 4 * card.num_parameters
    assert [c.name for c in service.get_json("/drafters", DrafterList).drafters] == ["good", "b"]
    assert not np.array_equal(draft(service, drafter="b").top_ids, draft(service).top_ids)
    with pytest.raises(RequestError) as caught:
        service.post_json("/drafters", DrafterLoadRequest(name="b", path=str(root / "good")), DrafterCard)
    assert caught.value.code == ErrorCode.DRAFTER_EXISTS
    service.delete("/drafters/b")
    with pytest.raises(NotFoundError):
        draft(service, drafter="b")
    with pytest.raises(NotFoundError):
        service.delete("/drafters/b")


def test_loading_is_confined_to_the_roots(service: Connection, root: Path, tmp_path: Path) -> None:
    outside = drafters.write_folder(tmp_path / "outside", drafters.dflash_config(), drafters.dflash_tensors())
    link = root / "link"
    link.symlink_to(outside)
    inner = root / "inner"
    inner.mkdir()
    shutil.copy(outside / "config.json", inner)
    (inner / "model.safetensors").symlink_to(outside / "model.safetensors")
    for path in (outside, root / ".." / "outside", link, inner, Path("/etc/passwd")):
        with pytest.raises(PermissionDeniedError) as caught:
            service.post_json("/drafters", DrafterLoadRequest(name="x", path=str(path)), DrafterCard)
        assert caught.value.code == ErrorCode.PATH_OUTSIDE_ROOTS


def test_a_drafter_for_another_target_is_refused_when_loaded(service: Connection, root: Path) -> None:
    with pytest.raises(MismatchError, match="taps layer 70") as caught:
        service.post_json("/drafters", DrafterLoadRequest(name="deep", path=str(root / "deep")), DrafterCard)
    assert caught.value.details["drafter"]["taps"] == [1, 3, 70]
    assert caught.value.details["target"]["num_layers"] == 6


def test_a_broken_checkpoint_is_an_error_and_leaves_no_name_behind(service: Connection, root: Path) -> None:
    request = DrafterLoadRequest(name="broken", path=str(root / "nothing-here"))
    for _ in range(2):  # the second time would say "exists" if the first had left its reservation
        with pytest.raises(CheckpointError, match="no such file"):
            service.post_json("/drafters", request, DrafterCard)


def test_info_tells_drafters_limits_and_the_target(service: Connection, target: drafters.StatesServer) -> None:
    info = service.get_json("/info", DrafterServiceInfo)
    assert info.version == "1.2.3"
    assert [card.name for card in info.drafters] == ["good"]
    assert info.limits == SMALL_LIMITS
    assert info.target_model is not None
    assert info.target_model.vocab_size == drafters.VOCAB
    assert "dflash" in info.families


def test_differences_to_the_training_numerics_are_warnings_in_the_answer(
    service: Connection, root: Path, target: drafters.StatesServer
) -> None:
    trained = {"linear_attention": "fla", "compute_dtype": "float32"}
    drafters.write_folder(
        root / "recorded", drafters.dflash_config(training_numerics=trained), drafters.dflash_tensors()
    )
    service.post_json("/drafters", DrafterLoadRequest(name="rec", path=str(root / "recorded")), DrafterCard)
    before = target.numerics
    target.numerics = before.model_copy(update={"linear_attention": "torch-reference", "reference_kernels": True})
    try:
        warnings = draft(service, drafter="rec", hidden=HiddenByHandle(handle="w")).drafter.warnings
    finally:
        target.numerics = before
        service.delete("/drafters/rec")
    assert any("linear_attention" in w and "'fla'" in w and "'torch-reference'" in w for w in warnings)
    assert any("reference kernels" in w for w in warnings)
    assert not any("compute_dtype" in w for w in warnings)


def test_a_request_that_waits_for_its_states_survives_an_unload(
    service: Connection, root: Path, target: drafters.StatesServer
) -> None:
    service.post_json("/drafters", DrafterLoadRequest(name="leaving", path=str(root / "other")), DrafterCard)
    target.gate.clear()
    target.entered.clear()
    with ThreadPoolExecutor(1) as pool:
        try:
            waiting = pool.submit(draft, service, drafter="leaving", hidden=HiddenByHandle(handle="slow"))
            assert target.entered.wait(drafters.GATE_TIMEOUT_S)
            service.delete("/drafters/leaving")
        finally:
            target.gate.set()
        assert waiting.result(drafters.GATE_TIMEOUT_S).drafter.name == "leaving"


def test_many_drafters_and_callers_at_once_get_their_own_rows(service: Connection, root: Path) -> None:
    service.post_json("/drafters", DrafterLoadRequest(name="twin", path=str(root / "other")), DrafterCard)
    try:
        alone = {name: draft(service, drafter=name) for name in ("good", "twin")}
        with ThreadPoolExecutor(8) as pool:
            asked = [("good", "twin")[i % 2] for i in range(24)]
            answers = list(pool.map(lambda name: draft(service, drafter=name, anchors=[START + 2]), asked))
        for name, answer in zip(asked, answers, strict=True):
            assert np.array_equal(answer.top_ids[0], alone[name].top_ids[2])
    finally:
        service.delete("/drafters/twin")
