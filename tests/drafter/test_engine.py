"""The engine without HTTP: budgets, the context cache, unloading, abandoned work, failures that stay with their job."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.context_cache import CachedContext, ContextCache
from tauscope_drafter.contract import DraftJob, DraftResult, StatesArray
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.registry import Registry
from tauscope_wire.errors import (
    DeadlineError,
    ErrorCode,
    MismatchError,
    NotFoundError,
    RequestError,
    TauscopeError,
    TooLargeError,
)

STATES, IDS = drafters.random_sequence()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("drafters")
    drafters.write_target(base / "target")
    drafters.write_folder(base / "a", drafters.dflash_config(), drafters.dflash_tensors())
    trained = drafters.dflash_config(training_numerics={"linear_attention": "fla"})
    drafters.write_folder(base / "trained", trained, drafters.dflash_tensors())
    return base


def engine_of(folder: Path, **limits: Any) -> Engine:
    engine = Engine(open_place(torch.device("cpu"), torch.float32, folder / "target"), **limits)
    engine.load("a", folder / "a", LoadOptions(), roots=None)
    return engine


def job(engine: Engine, name: str = "a", **changes: Any) -> DraftJob:
    fields = {
        "lease": engine.lease(name),
        "token_ids": IDS.numpy(),
        "anchors": np.array([5, 9, 20], np.int32),
        "states": StatesArray(states=STATES.numpy()),
        "context_key": None,
        "top_k": 3,
        "labels": False,
    }
    return DraftJob(**(fields | changes))


def result(engine: Engine, asked: DraftJob) -> DraftResult:
    (answer,) = engine.draft([asked])
    if isinstance(answer, BaseException):
        raise answer
    return answer


@pytest.mark.parametrize("batch", [1, 2, 50])
def test_the_size_of_batches_changes_nothing(folder: Path, batch: int) -> None:
    drafted = result(engine_of(folder, max_batch_anchors=batch), job(engine_of(folder)))
    reference = result(engine_of(folder, max_batch_anchors=1), job(engine_of(folder)))
    assert np.array_equal(drafted.top_ids, reference.top_ids)
    np.testing.assert_allclose(drafted.top_logprobs, reference.top_logprobs, rtol=1e-4, atol=1e-4)


def test_memory_for_activations_bounds_the_batch(folder: Path) -> None:
    engine = engine_of(folder, batch_bytes=1)
    network = engine.lease("a").entry.loaded.network
    assert engine._anchors_per_batch(network, 24) == 1


def test_a_drafter_over_the_budget_is_refused_before_it_is_read(folder: Path) -> None:
    size = engine_of(folder).cards()[0].memory_bytes
    engine = engine_of(folder, drafter_bytes=2 * size - 1)
    with pytest.raises(TooLargeError, match="unload one") as caught:
        engine.load("b", folder / "a", LoadOptions(), roots=None)
    assert caught.value.details == {"needed": size, "used": size, "bound": 2 * size - 1}
    engine.unload("a")
    assert engine.load("b", folder / "a", LoadOptions(), roots=None).memory_bytes == size


def test_tables_of_its_own_that_nobody_expected_count_too(folder: Path, tmp_path: Path) -> None:
    size = engine_of(folder).cards()[0].memory_bytes
    engine = engine_of(folder, drafter_bytes=2 * size + 100)
    own = drafters.dflash_tensors() | drafters.shared_tables(seed=1)  # not the target's, so they cannot be shared
    drafters.write_folder(tmp_path / "own", drafters.dflash_config(), own)
    for _ in range(2):
        with pytest.raises(TooLargeError, match="unload one"):
            engine.load("b", tmp_path / "own", LoadOptions(), roots=None)
    assert [card.name for card in engine.cards()] == ["a"]


def test_a_request_in_flight_survives_the_unload_of_its_drafter(folder: Path) -> None:
    engine = engine_of(folder)
    started = job(engine, context_key="h")
    engine.unload("a")
    with pytest.raises(NotFoundError, match="loaded are: none"):
        engine.lease("a")
    assert result(engine, started).token_ids.shape == (3, 3)
    assert engine._cache.used_bytes == 0  # else the cache would hold on to a drafter that nobody can ask


def test_one_bad_job_fails_alone(folder: Path) -> None:
    engine = engine_of(folder)
    bad = job(engine, states=StatesArray(states=np.full_like(STATES.numpy(), np.nan)))
    answers = engine.draft([job(engine), bad, job(engine)])
    assert [type(a) for a in answers] == [DraftResult, RequestError, DraftResult]


def test_a_defect_is_an_error_without_its_text(folder: Path) -> None:
    engine = engine_of(folder)
    (answer,) = engine.draft([job(engine, states=StatesArray(states=STATES.numpy()[:1]))])  # too few planes
    assert isinstance(answer, TauscopeError)
    assert answer.code == ErrorCode.INTERNAL


def test_work_that_nobody_waits_for_stops_between_batches(folder: Path) -> None:
    engine = engine_of(folder)
    stop = threading.Event()
    stop.set()
    with pytest.raises(DeadlineError) as caught:
        result(engine, job(engine, stop=stop))
    assert caught.value.code == ErrorCode.CANCELLED


def test_a_kept_context_drafts_as_a_fresh_one_until_more_rows_are_needed(folder: Path) -> None:
    engine = engine_of(folder)
    fresh = result(engine, job(engine, context_key="h", states=StatesArray(states=STATES.numpy()[:, :20])))
    lease = engine.lease("a")
    assert lease.has_context("h", IDS.tolist(), 20)
    kept = result(engine, job(engine, lease=lease, states=None))
    assert np.array_equal(kept.top_logprobs, fresh.top_logprobs)
    assert not engine.lease("a").has_context("h", IDS.tolist(), 21)
    assert not engine.lease("a").has_context("other", IDS.tolist(), 5)


def test_a_kept_context_answers_no_other_sequence(folder: Path) -> None:
    engine, held = engine_of(folder), IDS.numpy()[:21].astype(np.int32)
    states = StatesArray(states=STATES.numpy()[:, :20], token_ids=held)
    result(engine, job(engine, context_key="h", states=states))
    other = IDS.tolist()
    other[3] = (other[3] + 1) % drafters.VOCAB
    with pytest.raises(RequestError, match="differ from those of the handle from position 3 on") as caught:
        engine.lease("a").has_context("h", other, 20)
    assert caught.value.details == {"position": 3, "request": other[3], "handle": int(held[3])}
    later = [*IDS.tolist()[:20], (held[20] + 1) % drafters.VOCAB]  # past the context, but an anchor or a label
    with pytest.raises(RequestError, match="from position 20 on"):
        engine.lease("a").has_context("h", later, 20)


def test_a_context_with_slots_is_not_reused_for_another_token_after_the_handle(folder: Path) -> None:
    """Slot p-1 holds the embedding of token p, which a handle of p positions does not have."""
    engine = engine_of(folder)
    states = StatesArray(states=STATES.numpy()[:, :20], token_ids=IDS.numpy()[:20].astype(np.int32))
    result(engine, job(engine, context_key="h", states=states))
    other = [*IDS.tolist()[:20], (int(IDS[20]) + 1) % drafters.VOCAB]
    assert engine.lease("a").has_context("h", IDS.tolist(), 20)
    assert not engine.lease("a").has_context("h", other, 20)
    assert engine.lease("a").has_context("h", other, 12)


def test_no_context_outlives_the_drafter_it_was_made_for(folder: Path) -> None:
    engine = engine_of(folder)
    result(engine, job(engine, context_key="h"))
    engine.unload("a")
    engine.load("a", folder / "a", LoadOptions(), roots=None)
    assert not engine.lease("a").has_context("h", IDS.tolist(), 5)


def test_contexts_leave_in_the_order_of_use_and_the_budget_holds() -> None:
    cache = ContextCache(100)
    owner = object()
    for key in "abc":
        cache.put(owner, key, CachedContext(key, 10, 40))
    assert cache.used_bytes == 80
    assert cache.get(owner, "a", 1) is None
    assert cache.get(owner, "b", 10) is not None  # now newer than c
    cache.put(owner, "d", CachedContext("d", 10, 60))
    assert cache.get(owner, "c", 1) is None
    assert cache.get(owner, "b", 1) is not None
    cache.put(owner, "huge", CachedContext("huge", 10, 101))
    assert cache.get(owner, "huge", 1) is None
    cache.forget(owner)
    assert cache.used_bytes == 0


def test_a_name_is_taken_while_it_is_being_loaded() -> None:
    class Thing:
        memory_bytes = 10

    registry: Registry[Thing] = Registry(25)
    registry.reserve("a", 10)
    with pytest.raises(RequestError, match="loaded already"):
        registry.reserve("a", 10)
    registry.reserve("b", 10)
    with pytest.raises(TooLargeError):
        registry.reserve("c", 10)
    registry.release("b")
    registry.reserve("c", 10)
    registry.put("c", Thing())
    assert len(registry.entries()) == 1


def test_strict_numerics_refuses_what_is_a_warning_otherwise(folder: Path) -> None:
    served = drafters.NUMERICS.model_copy(update={"linear_attention": "torch-reference"})
    states = StatesArray(states=STATES.numpy(), numerics=served)
    for strict in (False, True):
        engine = engine_of(folder, strict_numerics=strict)
        engine.load("t", folder / "trained", LoadOptions(), roots=None)
        if not strict:
            assert any("linear_attention" in w for w in result(engine, job(engine, "t", states=states)).warnings)
            continue
        with pytest.raises(MismatchError, match=r"'fla'.*'torch-reference'") as caught:
            result(engine, job(engine, "t", states=states))
        assert caught.value.code == ErrorCode.NUMERICS_MISMATCH
        assert result(engine, job(engine, "a", states=states)).token_ids.shape == (3, 3)


def test_more_candidates_than_a_drafter_ranks_are_refused(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder)
    selector = drafters.write_folder(tmp_path / "d2", drafters.dflash2_config(), drafters.dflash2_tensors())
    engine.load("d2", selector, LoadOptions(), roots=None)
    assert result(engine, job(engine, "d2", top_k=7)).top_ids.shape == (3, 3, 7)
    with pytest.raises(RequestError, match="at most 7"):
        result(engine, job(engine, "d2", top_k=8))
    assert result(engine, job(engine, top_k=96)).top_ids.shape == (3, 3, 96)
    with pytest.raises(RequestError, match="at most 96"):
        result(engine, job(engine, top_k=97))
