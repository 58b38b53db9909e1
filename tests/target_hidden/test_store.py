"""The handle store: budgets, order of eviction, time to live, pins, owners."""

from typing import Any

import numpy as np
import pytest

from tauscope_target.answers import part_of
from tauscope_target.handles import handle_of
from tauscope_target.jobs import HiddenJob, LogitsSpec
from tauscope_target.store import HandleStore
from tauscope_target.stored import StoredStates, stored
from tauscope_wire.errors import ErrorCode, GoneError, QuotaError, TooLargeError, UnavailableError
from tauscope_wire.layers import Plane

ROW_BYTES = 64 * 4 + 4
"""One float32 row of 64 values and its token id."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(rows: int = 10, *, owner: str = "ann", shared: bool = False) -> StoredStates:
    states = np.arange(rows * 64, dtype=np.float32).reshape(1, rows, 64)
    ids = np.arange(rows, dtype=np.int32)
    return stored(
        planes=(1,), dtype="float32", token_ids=ids, start=0, states=states, logits=None, owner=owner, shared=shared
    )


def store(rows: int = 30, **fields: Any) -> HandleStore:
    return HandleStore(max_bytes=rows * ROW_BYTES, **({"ttl_s": 100.0, "clock": Clock()} | fields))


def held(kept: HandleStore, *handles: str, caller: str = "ann") -> list[bool]:
    found = []
    for handle in handles:
        try:
            kept.unpin(kept.pin(handle, caller))
            found.append(True)
        except GoneError:
            found.append(False)
    return found


@pytest.mark.parametrize("planes", [(5, 1), (1, 5, 3), (3,), None])
def test_any_part_of_an_entry_is_sent_from_where_it_lies(planes: tuple[Plane, ...] | None) -> None:
    states = np.arange(3 * 10 * 4, dtype=np.float32).reshape(3, 10, 4)
    ids = np.arange(30, dtype=np.int32)
    kept = stored(
        planes=(1, 3, 5), dtype="float32", token_ids=ids, start=20, states=states, logits=None, owner="a", shared=False
    )
    names = planes or (1, 3, 5)
    chunks = part_of(kept, planes=planes, start=22, stop=29).chunks(max_bytes=len(names) * 3 * 4 * 4)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(22, 25), (25, 28), (28, 29)]
    parts = [[np.asarray(plane) for plane in chunk.data] for chunk in chunks]
    order = [kept.planes.index(name) for name in names]
    np.testing.assert_array_equal(np.concatenate([np.stack(part) for part in parts], axis=1), states[order, 2:9])
    assert all(np.shares_memory(plane, states) for part in parts for plane in part)


def test_the_oldest_goes_first_when_the_budget_is_used_up() -> None:
    kept = store()
    for name in "abcd":
        kept.put(name, entry())
    assert held(kept, *"abcd") == [False, True, True, True]
    assert kept.facts()["bytes"] == 30 * ROW_BYTES
    assert kept.facts()["evicted"] == 1


def test_one_large_entry_displaces_several_small_ones() -> None:
    kept = store()
    for name in "abc":
        kept.put(name, entry())
    kept.put("large", entry(25))
    assert held(kept, "a", "b", "c", "large") == [False, False, False, True]


def test_what_is_being_read_is_not_evicted() -> None:
    kept = store()
    for name in "abc":
        kept.put(name, entry())
    with kept.reading("a", "ann") as states:
        kept.put("d", entry())
        assert held(kept, *"abcd") == [True, False, True, True]
        assert states.states.shape == (1, 10, 64)
    kept.put("e", entry())
    assert held(kept, "a") == [False]


def test_a_store_full_of_readers_says_so_and_keeps_them() -> None:
    kept = store(10)
    kept.put("a", entry())
    with kept.reading("a", "ann"):
        with pytest.raises(UnavailableError) as caught:
            kept.put("b", entry())
        assert caught.value.code is ErrorCode.STORE_FULL
    assert held(kept, "a", "b") == [True, False]
    assert kept.facts()["bytes"] == 10 * ROW_BYTES


def test_an_entry_larger_than_the_store_is_refused() -> None:
    with pytest.raises(TooLargeError, match="store holds"):
        store(9).put("a", entry(10))


def test_an_entry_expires_by_its_age_unless_it_is_being_read() -> None:
    clock = Clock()
    kept = store(clock=clock)
    kept.put("a", entry())
    clock.now = 99
    kept.put("b", entry())
    pinned = kept.pin("a", "ann")
    clock.now = 101
    assert held(kept, "a", "b") == [True, True]
    kept.unpin(pinned)
    assert held(kept, "a", "b") == [False, True]
    assert kept.facts()["expired"] == 1


def test_another_keys_handle_is_gone_unless_it_is_shared() -> None:
    kept = store()
    kept.put("own", entry())
    kept.put("shared", entry(shared=True))
    assert held(kept, "own", "shared", caller="ben") == [False, True]
    for name in ("own", "shared"):
        with pytest.raises(GoneError):
            kept.delete(name, "ben")
    kept.delete("own", "ann")
    assert held(kept, "own") == [False]
    assert kept.facts()["bytes"] == 10 * ROW_BYTES


def test_a_deleted_entry_stays_whole_for_its_reader() -> None:
    kept = store()
    kept.put("a", entry())
    with kept.reading("a", "ann") as states:
        kept.delete("a", "ann")
        np.testing.assert_array_equal(states.states, entry().states)
    assert held(kept, "a") == [False]


def test_the_same_handle_again_replaces_the_entry_and_is_counted_once() -> None:
    kept = store()
    kept.put("a", entry())
    kept.put("a", entry(12))
    assert kept.facts()["bytes"] == 12 * ROW_BYTES
    assert kept.facts()["entries"] == 1


def test_a_keys_share_of_the_store_evicts_its_own_entries_only() -> None:
    kept = store()
    kept.put("a", entry(5))
    kept.put("ben", entry(5, owner="ben"))
    kept.put("b", entry(8), owner_bytes=10 * ROW_BYTES)
    assert held(kept, "a", "b") == [False, True]
    assert held(kept, "ben", caller="ben") == [True]
    with pytest.raises(QuotaError):
        kept.put("c", entry(11), owner_bytes=10 * ROW_BYTES)


def job(**fields: Any) -> HiddenJob:
    defaults: dict[str, Any] = {
        "token_ids": np.arange(5, dtype=np.int32),
        "layers": (1, 2),
        "final_norm": False,
        "start": 0,
        "stop": 5,
    }
    return HiddenJob(**(defaults | fields))


def test_a_handle_depends_on_everything_that_changes_the_answer() -> None:
    variants = [
        job(),
        job(token_ids=np.arange(6, dtype=np.int32)),
        job(layers=(2, 1)),
        job(layers=(1,)),
        job(final_norm=True),
        job(start=1),
        job(stop=4),
        job(dtype="float32"),
        job(logits=LogitsSpec(0, False)),
        job(logits=LogitsSpec(0, True)),
        job(logits=LogitsSpec(2, False)),
    ]
    names = {handle_of(one, b"context", secret=b"secret") for one in variants}
    names |= {handle_of(job(), b"other", secret=b"secret"), handle_of(job(), b"context", secret=b"other")}
    assert len(names) == len(variants) + 2
    assert handle_of(job(), b"context", secret=b"secret") == handle_of(job(), b"context", secret=b"secret")
