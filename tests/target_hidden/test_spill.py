"""Handles on disk: complete or absent, found after a restart, whatever kills the process."""

import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from kit.engine import Start, random_ids
from kit.serve import SMALL_LIMITS, running
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.settings import TargetSettings
from tauscope_target.spill import REFRESH_S, SpillDirectory
from tauscope_target.store import HandleStore
from tauscope_target.stored import StoredStates, stored
from tauscope_wire.connection import Connection
from tauscope_wire.errors import ErrorCode, GoneError, QuotaError, RequestError, UnavailableError
from tauscope_wire.messages import HiddenRequest, LogitsRequest
from tauscope_wire.reader import read_hidden
from tauscope_wire.tensors import LogitsSummary

ONE, TWO, THREE = ("1" * 48, "2" * 48, "3" * 48)


def entry(seed: int = 0, *, rows: int = 10, logits: bool = True) -> StoredStates:
    random = np.random.default_rng(seed)
    summary = LogitsSummary(
        argmax_ids=random.integers(0, 9, rows, dtype=np.int32),
        top_ids=random.integers(0, 9, (rows, 2), dtype=np.int32),
        top_logprobs=random.random((rows, 2), dtype=np.float32),
        next_logprobs=random.random(rows - 1, dtype=np.float32),
    )
    return stored(
        planes=(1, "final_norm"),
        dtype="bfloat16",
        token_ids=random.integers(0, 9, rows, dtype=np.int32),
        start=0,
        states=random.random((2, rows, 64), dtype=np.float32).astype(ml_dtypes.bfloat16),
        logits=summary if logits else None,
        owner="ann",
        shared=True,
    )


def spill(path: Path, **fields: Any) -> SpillDirectory:
    return SpillDirectory(path, **({"max_bytes": 1 << 20, "ttl_s": 1000.0} | fields))


def assert_equal(found: StoredStates | None, expected: StoredStates) -> None:
    assert found is not None
    np.testing.assert_array_equal(found.states.view(np.uint16), expected.states.view(np.uint16))
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    for name in ("planes", "dtype", "start", "owner", "shared", "digest"):
        assert getattr(found, name) == getattr(expected, name), name
    assert (found.logits is None) == (expected.logits is None)
    if found.logits is not None and expected.logits is not None:
        for name in ("argmax_ids", "top_ids", "top_logprobs", "next_logprobs"):
            np.testing.assert_array_equal(getattr(found.logits, name), getattr(expected.logits, name))


@pytest.mark.parametrize("logits", [True, False])
def test_a_restart_finds_what_was_written(tmp_path: Path, logits: bool) -> None:
    spill(tmp_path).write(ONE, entry(logits=logits))
    again = spill(tmp_path)
    assert_equal(again.read(ONE), entry(logits=logits))
    assert again.read(TWO) is None


def test_the_file_is_safetensors_for_anybody(tmp_path: Path) -> None:
    spill(tmp_path).write(ONE, entry())
    with safe_open(tmp_path / f"{ONE}.safetensors", framework="pt") as file:
        assert file.get_tensor("states").shape == (2, 10, 64)
        assert file.metadata()["schema"] == "tauscope.spill/1"


def test_a_damaged_file_is_never_served_and_goes(tmp_path: Path) -> None:
    spill(tmp_path).write(ONE, entry())
    file = tmp_path / f"{ONE}.safetensors"
    content = bytearray(file.read_bytes())
    content[-2000] ^= 1
    file.write_bytes(content)
    assert spill(tmp_path).read(ONE) is None
    assert not file.exists()


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_file_cut_short_is_never_served(tmp_path: Path, keep: int) -> None:
    spill(tmp_path).write(ONE, entry())
    file = tmp_path / f"{ONE}.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert spill(tmp_path).read(ONE) is None


def test_unfinished_files_of_an_earlier_process_are_removed(tmp_path: Path) -> None:
    spill(tmp_path).write(ONE, entry())
    (tmp_path / f".{TWO}.1.abcd.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("somebody's")
    again = spill(tmp_path)
    assert len(again) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([f"{ONE}.safetensors", "notes.txt", "secret"])


def test_the_oldest_files_go_when_the_budget_is_used_up(tmp_path: Path) -> None:
    probe = spill(tmp_path / "probe")
    probe.write(ONE, entry())
    kept = spill(tmp_path / "kept", max_bytes=2 * probe.nbytes + 100)
    for number, handle in enumerate((ONE, TWO, THREE)):
        kept.write(handle, entry(number))
    assert kept.read(ONE) is None
    assert_equal(kept.read(TWO), entry(1))
    assert kept.nbytes <= 2 * probe.nbytes + 100
    with pytest.raises(UnavailableError) as caught:
        spill(tmp_path / "tiny", max_bytes=100).write(ONE, entry())
    assert caught.value.code is ErrorCode.STORE_FULL


def handles(count: int) -> list[str]:
    return [f"{number:048x}" for number in range(1, count + 1)]


def test_a_key_that_keeps_too_much_loses_its_own_oldest_files_and_nobody_elses(tmp_path: Path) -> None:
    first = spill(tmp_path)
    one, *mine = handles(6)
    first.write(one, replace(entry(), owner="bob"))
    nbytes = first.nbytes
    room = 2 * nbytes + nbytes // 2
    again = spill(tmp_path)  # owners are known after a restart
    for handle in mine:
        again.write(handle, entry(), owner_bytes=room)
    kept = [handle for handle in (one, *mine) if again.read(handle) is not None]
    assert kept == [one, *mine[-2:]]
    again.write(mine[-1], entry(), owner_bytes=room)  # writing it anew costs no other file
    assert again.read(mine[-2]) is not None
    with pytest.raises(QuotaError) as caught:
        again.write(mine[0], entry(), owner_bytes=nbytes // 2)
    assert (caught.value.details["limit"], caught.value.details["bound"]) == ("store_bytes", nbytes // 2)


def test_processes_that_share_a_folder_share_its_budgets(tmp_path: Path) -> None:
    now = [time.time()]
    first = spill(tmp_path, clock=lambda: now[0])
    one, *others = handles(5)
    first.write(one, entry())
    nbytes = first.nbytes
    first = spill(tmp_path, clock=lambda: now[0], max_bytes=3 * nbytes + nbytes // 2)
    second = spill(tmp_path, clock=lambda: now[0], max_bytes=3 * nbytes + nbytes // 2)
    for number, handle in enumerate(others):
        now[0] += REFRESH_S
        (first, second)[number % 2].write(handle, entry())
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    for number, handle in enumerate(others):
        now[0] += REFRESH_S
        (first, second)[number % 2].write(handle, entry(), owner_bytes=2 * nbytes)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert first.read(others[-1]) is not None


def test_a_file_larger_than_the_budget_is_refused_and_nothing_goes_for_it(tmp_path: Path) -> None:
    kept = spill(tmp_path, max_bytes=30_000)
    kept.write(ONE, entry())
    with pytest.raises(UnavailableError) as caught:
        kept.write(TWO, entry(1, rows=1000))
    assert caught.value.code is ErrorCode.STORE_FULL
    assert_equal(kept.read(ONE), entry())
    assert_equal(spill(tmp_path).read(ONE), entry())


def test_a_folder_that_disappears_is_a_full_store_and_no_crash(tmp_path: Path) -> None:
    kept = spill(tmp_path / "gone")
    kept.write(ONE, entry())
    shutil.rmtree(tmp_path / "gone")
    for _ in range(2):
        with pytest.raises(UnavailableError) as caught:
            kept.write(TWO, entry(1))
        assert caught.value.code is ErrorCode.STORE_FULL
    assert kept.read(ONE) is None
    assert kept.problem() is not None


def test_a_file_older_than_its_time_to_live_is_gone(tmp_path: Path) -> None:
    now = [time.time()]
    kept = spill(tmp_path, clock=lambda: now[0])
    kept.write(ONE, entry())
    now[0] += 999
    assert kept.read(ONE) is not None
    now[0] += 2
    assert kept.read(ONE) is None
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_clock_that_jumps_forgets_at_most_what_is_made_again(tmp_path: Path) -> None:
    now = [time.time()]
    kept = spill(tmp_path, clock=lambda: now[0], ttl_s=1000.0)
    kept.write(ONE, entry())
    for step in (-86_400, +86_400):  # a day back, and to where it was
        now[0] += step
        assert_equal(kept.read(ONE), entry())
        kept.write(TWO, entry(1))
        assert_equal(kept.read(TWO), entry(1))
    now[0] += 86_400  # a day on: all are too old, and gone as if evicted
    assert kept.read(ONE) is None
    kept.write(ONE, entry())
    assert_equal(kept.read(ONE), entry())


def test_a_mapped_entry_outlives_its_file(tmp_path: Path) -> None:
    kept = spill(tmp_path)
    kept.write(ONE, entry())
    found = kept.read(ONE)
    kept.remove(ONE)
    assert_equal(found, entry())
    assert kept.read(ONE) is None
    assert kept.nbytes == 0


def test_a_handle_that_is_no_handle_reaches_no_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.safetensors").write_bytes(b"x")
    kept = spill(tmp_path / "in")
    assert kept.read("../out") is None
    kept.remove("../out")
    assert (tmp_path / "out.safetensors").exists()


def test_the_folder_and_its_secret_are_private_and_kept(tmp_path: Path) -> None:
    first = spill(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "secret").stat().st_mode) == 0o600
    assert spill(tmp_path / "new").secret == first.secret
    assert spill(tmp_path / "other").secret != first.secret


def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="--spill-dir"):
        spill(tmp_path / "file")


def test_what_memory_evicts_comes_back_from_the_disk(tmp_path: Path) -> None:
    kept = HandleStore(max_bytes=2 * entry().nbytes, ttl_s=100, backing=spill(tmp_path))
    for number, handle in enumerate((ONE, TWO, THREE)):
        kept.put(handle, entry(number))
    assert kept.facts()["entries"] == 2
    assert kept.facts()["spilled"] == 3
    with kept.reading(ONE, "ben") as found:
        assert_equal(found, entry(0))
    kept.delete(ONE, "ann")
    with pytest.raises(GoneError):
        kept.pin(ONE, "ann")


def test_an_entry_larger_than_memory_is_served_from_the_disk(tmp_path: Path) -> None:
    kept = HandleStore(max_bytes=10, ttl_s=100, backing=spill(tmp_path))
    kept.put(ONE, entry())
    with kept.reading(ONE, "ann") as found:
        assert_equal(found, entry())


def test_what_is_shared_later_is_shared_in_its_file_too(tmp_path: Path) -> None:
    kept = HandleStore(max_bytes=10, ttl_s=100, backing=spill(tmp_path))  # nothing fits into memory
    own = entry()
    own.shared = False
    kept.put(ONE, own)
    with pytest.raises(GoneError):
        kept.pin(ONE, "ben")
    with kept.reading(ONE, "ann") as found:
        kept.share(ONE, found)
    for store in (kept, HandleStore(max_bytes=10, ttl_s=100, backing=spill(tmp_path))):
        with store.reading(ONE, "ben") as found:
            assert_equal(found, entry())


def test_kill_9_during_spills_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """A process writes handle after handle, says each name once it is written, and is killed in the middle."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "spill_writer.py"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(25)]
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().split()
    again = spill(tmp_path, max_bytes=1 << 30)
    assert len(acknowledged) >= 25
    for handle in acknowledged:
        if len(handle) == 48:  # the last line may be half
            found = again.read(handle)
            assert found is not None, handle
            assert found.token_ids[0] == int(handle)
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_restarted_service_finds_its_handles_again(start: Start, tmp_path: Path) -> None:
    settings = TargetSettings(
        serving=ServingSettings(limits=SMALL_LIMITS), store_bytes=1 << 20, spill_dir=tmp_path / "spill"
    )
    request = HiddenRequest(
        token_ids=random_ids(12).tolist(), layers=[1, 3], return_="handle", logits=LogitsRequest(top_k=2)
    )
    with running(create_app(start("llama"), None, settings)) as url, Connection(url) as service:
        first = service.post_tensors("/hidden_states", request, read_hidden)
        before = service.get_tensors(f"/hidden_states/{first.handle}", None, read_hidden)
    with running(create_app(start("llama"), None, settings)) as url, Connection(url) as service:
        after = service.get_tensors(f"/hidden_states/{first.handle}", {"planes": "3"}, read_hidden)
        again = service.post_tensors("/hidden_states", request, read_hidden)
    assert before.states is not None
    np.testing.assert_array_equal(after.states, before.states[1:])
    assert (again.handle, again.digest, again.states) == (first.handle, first.digest, None)
    assert first.timing_ms and not again.timing_ms  # found, not computed
    assert again.logits is not None and first.logits is not None
    np.testing.assert_array_equal(again.logits.top_logprobs, first.logits.top_logprobs)
