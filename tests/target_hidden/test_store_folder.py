"""States as files in memory: private, named once, within the store's budget, gone with their process."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tauscope_target.store import LEASE_S, HandleStore
from tauscope_target.store_folder import LOCK, PREFIX, StoreFolder
from tauscope_target.stored import StoredStates, stored
from tauscope_wire.errors import ErrorCode, GoneError, MismatchError, RequestError, UnavailableError

ROWS, HIDDEN = 10, 64
NBYTES = 2 * ROWS * HIDDEN * 2 + ROWS * 4
"""Of an entry: two planes of BF16, and the token ids."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(seed: int = 0, *, owner: str = "ann", shared: bool = False) -> StoredStates:
    states = np.random.default_rng(seed).random((2, ROWS, HIDDEN), dtype=np.float32).astype(ml_dtypes.bfloat16)
    ids = np.arange(ROWS, dtype=np.int32)
    return stored(
        planes=(1, 3), dtype="bfloat16", token_ids=ids, start=0, states=states, logits=None, owner=owner, shared=shared
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StoreFolder]:
    made = StoreFolder(tmp_path / "states")
    yield made
    made.close()


def store(folder: StoreFolder, entries: int = 4, **fields: Any) -> HandleStore:
    return HandleStore(max_bytes=entries * NBYTES, folder=folder, **({"ttl_s": 100.0, "clock": Clock()} | fields))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_states_move_into_private_files_whose_names_say_nothing(folder: StoreFolder, tmp_path: Path) -> None:
    kept = store(folder)
    kept.put("a" * 48, entry())
    (file,) = files(tmp_path / "states")
    assert "a" * 48 not in file.name
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    with kept.reading("a" * 48, "ann") as found:
        assert isinstance(found.states, np.memmap)
        np.testing.assert_array_equal(found.states.view(np.uint16), entry().states.view(np.uint16))


def test_eviction_age_and_replacement_remove_files_and_readers_keep_the_states(
    folder: StoreFolder, tmp_path: Path
) -> None:
    clock = Clock()
    kept = store(folder, entries=2, clock=clock)
    kept.put("a", entry(0))
    held, _, _ = kept.lease("a", "ann")
    states = held.states
    clock.now = LEASE_S + 1
    kept.put("a", entry(0))  # replaced: a new name, because a GPU may give other bits
    kept.put("b", entry(1))
    kept.put("c", entry(2))
    assert len(files(tmp_path / "states")) == 2
    np.testing.assert_array_equal(states.view(np.uint16), entry(0).states.view(np.uint16))
    clock.now += 101
    assert kept.facts()["entries"] == 0
    assert not files(tmp_path / "states")


def test_a_lease_holds_off_eviction_and_age_for_a_bounded_time(folder: StoreFolder) -> None:
    clock = Clock()
    kept = store(folder, entries=2, clock=clock)
    kept.put("a", entry(0))
    kept.put("b", entry(1))
    _, file, lease_s = kept.lease("a", "ann")
    assert lease_s == LEASE_S
    kept.put("c", entry(2))  # evicts b, though a is older
    assert file.path.exists()
    with pytest.raises(GoneError):
        kept.lease("b", "ann")
    clock.now = LEASE_S
    kept.put("d", entry(3))
    assert not file.path.exists()


def test_a_lease_renewed_for_ever_ends_with_the_time_to_live(folder: StoreFolder) -> None:
    clock = Clock()
    kept = store(folder, clock=clock)
    kept.put("a", entry())
    for second in range(100):
        clock.now = float(second)
        _, _, lease_s = kept.lease("a", "ann")
        assert clock.now + lease_s <= 100.0
    clock.now = 100.5
    with pytest.raises(GoneError):
        kept.lease("a", "ann")


def test_leases_cannot_keep_the_store_from_taking_new_states(folder: StoreFolder) -> None:
    kept = store(folder, entries=4)
    for name in "abcd":
        kept.put(name, entry())
    leases = [kept.lease(name, "ann")[2] for name in "abcd"]
    assert leases == [LEASE_S, LEASE_S, 0.0, 0.0]
    kept.put("e", entry())
    kept.put("f", entry())
    with pytest.raises(GoneError):
        kept.lease("c", "ann")


def test_a_lease_is_refused_like_any_other_reading(folder: StoreFolder) -> None:
    kept = store(folder)
    kept.put("own", entry())
    kept.put("shared", entry(shared=True))
    assert kept.lease("shared", "ben")[2] == LEASE_S
    messages = set()
    for name, caller in (("own", "ben"), ("missing", "ben")):
        with pytest.raises(GoneError) as caught:
            kept.lease(name, caller)
        messages.add(caught.value.message.replace(name, ""))
    assert len(messages) == 1


def test_a_folder_that_cannot_be_written_leaves_states_in_memory(folder: StoreFolder, tmp_path: Path) -> None:
    kept = store(folder)
    (tmp_path / "states").rename(tmp_path / "elsewhere")
    kept.put("a", entry())
    with kept.reading("a", "ann") as found:
        np.testing.assert_array_equal(found.states.view(np.uint16), entry().states.view(np.uint16))
    with pytest.raises(MismatchError) as caught:
        kept.lease("a", "ann")
    assert caught.value.code is ErrorCode.MODE_CANNOT


def test_an_entry_that_finds_no_room_leaves_no_file(folder: StoreFolder, tmp_path: Path) -> None:
    kept = store(folder, entries=1)
    kept.put("a", entry())
    with kept.reading("a", "ann"), pytest.raises(UnavailableError):
        kept.put("b", entry(1))
    assert len(files(tmp_path / "states")) == 1


def test_closing_removes_files_and_a_folder_made_here_but_nothing_else(tmp_path: Path) -> None:
    made = StoreFolder(tmp_path / "made")
    assert made.move(entry())
    made.close()
    assert not (tmp_path / "made").exists()
    (tmp_path / "given").mkdir(mode=0o700)
    (tmp_path / "given" / "notes.txt").write_text("somebody's")
    given = StoreFolder(tmp_path / "given")
    assert given.move(entry())
    given.close()
    assert {file.name for file in (tmp_path / "given").iterdir()} == {"notes.txt", LOCK}


def test_a_start_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    left = tmp_path / "states"
    left.mkdir(mode=0o700)
    token = "ab" * 16
    for name in (f"{token}.safetensors", f".{token}.7.cd.tmp", "model.safetensors"):
        (left / name).write_bytes(b"x")
    StoreFolder(left).close()
    assert {file.name for file in left.iterdir()} == {"model.safetensors", LOCK}


def test_an_automatic_folder_is_new_and_private_and_stale_ones_of_this_user_go(tmp_path: Path) -> None:
    stale = tmp_path / f"{PREFIX}{os.geteuid()}-dead"
    stale.mkdir(mode=0o700)
    (stale / f"{'0' * 32}.safetensors").write_bytes(b"x")
    theirs = tmp_path / f"{PREFIX}{os.geteuid() + 1}-other"
    theirs.mkdir(mode=0o700)
    first = StoreFolder("auto", shared_memory=tmp_path)
    second = StoreFolder("auto", shared_memory=tmp_path)  # leaves the folder of the first: it lives
    names = {folder.name for folder in tmp_path.iterdir()}
    assert len(names) == 3
    assert stale.name not in names
    assert theirs.name in names
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in tmp_path.iterdir()} == {0o700}
    first.close()
    second.close()
    assert [folder.name for folder in tmp_path.iterdir()] == [theirs.name]


def test_a_folder_of_a_living_process_is_refused(folder: StoreFolder, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="another process"):
        StoreFolder(tmp_path / "states")


KILLED = """
import sys
from pathlib import Path

import numpy as np
from tauscope_target.store_folder import StoreFolder
from tauscope_target.stored import stored

folder = StoreFolder("auto", shared_memory=Path(sys.argv[1]))
ids = np.arange(3, dtype=np.int32)
states = np.ones((1, 3, 8), np.float32)
entry = stored(
    planes=(1,), dtype="float32", token_ids=ids, start=0, states=states, logits=None, owner="", shared=False
)
assert folder.move(entry)
print(entry.file.path, flush=True)
sys.stdin.read()
"""


def test_what_kill_9_leaves_is_removed_by_the_next_start_and_not_before_the_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        StoreFolder("auto", shared_memory=tmp_path).close()
        assert left.exists()
        process.send_signal(signal.SIGKILL)
    assert left.exists()
    StoreFolder("auto", shared_memory=tmp_path).close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["readable by others", "a link", "a file"])
def test_a_folder_that_is_not_private_is_refused(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "states"
    if fault == "a file":
        path.write_text("")
    elif fault == "a link":
        (tmp_path / "real").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "real")
    else:
        path.mkdir(mode=0o700)
        path.chmod(0o750)
    with pytest.raises(RequestError, match="--store-dir"):
        StoreFolder(path)
