"""The program: exit codes, one line for every failure, and a real process that serves and stops."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import drafters
from kit.logs import own_logs
from tauscope_drafter.cli import main
from tauscope_drafter.commands.sizes import format_bytes, parse_bytes
from tauscope_wire.connection import Connection
from tauscope_wire.errors import RequestError
from tauscope_wire.messages import DrafterServiceInfo


@pytest.fixture(autouse=True)
def root_handlers() -> Iterator[None]:
    with own_logs():
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafters.write_target(tmp_path_factory.mktemp("target"))


def test_sizes_are_read_and_written() -> None:
    assert [parse_bytes(t) for t in ("3.5GiB", "2 MB", "17")] == [3758096384, 2_000_000, 17]
    assert [format_bytes(n) for n in (5, 2048, 3758096384)] == ["5 B", "2.0 KiB", "3.50 GiB"]
    with pytest.raises(RequestError, match="no size"):
        parse_bytes("much")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, ["--drafter"]),
        (["--drafter", "nonsense"], 2, ["NAME=PATH"]),
        (["--drafter", "a=/nowhere/at/all", "--target-model", "TARGET"], 3, ["/nowhere/at/all"]),
        (["--drafter", "a=GOOD", "--target-model", "/nowhere"], 3, ["/nowhere/config.json"]),
        (["--drafter", "a=GOOD"], 3, ["embed_tokens", "--target-model"]),
        (["--drafter", "a=DEEP", "--target-model", "TARGET"], 4, ["layer 70"]),
        (["--drafter", "a=GOOD", "--host", "0.0.0.0"], 2, ["--keys", "--open-to-network"]),
        (["--drafter", "a=GOOD", "--device", "tpu"], 2, ["tpu"]),
        (["--drafter", "a=GOOD", "--drafter", "a=GOOD", "--target-model", "TARGET"], 2, ["loaded already"]),
        (["--drafter", "a=GOOD", "--drafter-memory", "1KiB", "--target-model", "TARGET"], 2, ["1024"]),
        (["--unknown"], 2, ["--unknown"]),
    ],
)
def test_a_wrong_start_is_one_line_and_an_exit_code(
    target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    arguments: list[str],
    code: int,
    words: list[str],
) -> None:
    good = drafters.write_folder(tmp_path / "good", drafters.dflash_config(), drafters.dflash_tensors())
    taps = {"target_layer_ids": [1, 3, 70], "mask_token_id": 7}
    deep = drafters.dflash_config(dflash_config=taps, num_target_layers=80)
    drafters.write_folder(tmp_path / "deep", deep, drafters.dflash_tensors())
    places = {"TARGET": str(target), "GOOD": str(good), "DEEP": str(tmp_path / "deep")}
    filled = [re.sub("TARGET|GOOD|DEEP", lambda m: places[m[0]], a) for a in arguments]
    default_port = [] if "--unknown" in filled else ["--port", "0"]
    assert main([*filled, *default_port]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert all(word in " ".join(lines[-3:]) for word in words), lines
    assert not any("Traceback" in line for line in lines)


def test_help_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--target-model" in capsys.readouterr().out


def test_the_program_serves_until_it_is_told_to_stop(target: Path, tmp_path: Path) -> None:
    good = drafters.write_folder(tmp_path / "good", drafters.dflash_config(), drafters.dflash_tensors())
    arguments = ["--drafter", f"good={good}", "--target-model", str(target), "--device", "cpu", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tauscope_drafter.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stderr is not None
        url = next(m[1] for line in process.stderr if (m := re.search(r"ready at (http://\S+)", line)))
        with Connection(url) as service:
            info = service.get_json("/info", DrafterServiceInfo)
        assert [card.name for card in info.drafters] == ["good"]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
