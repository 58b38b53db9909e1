"""The program: fast help, one line per failure, exit codes, and a service that starts and stops."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kit.engine import Checkpoint
from kit.logs import own_logs
from tauscope_target.cli import main
from tauscope_target.commands.extras import require_extra
from tauscope_target.commands.sizes import parse_bytes
from tauscope_target.duty import SHARED_DUTY
from tauscope_wire.errors import RequestError

PROGRAM = [sys.executable, "-m", "tauscope_target.cli"]


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from tauscope_target.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = ('torch', 'transformers', 'fastapi', 'uvicorn')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip() == "[]"
    assert "Exit codes" in done.stdout
    assert "--allow-reference-kernels" in done.stdout
    assert f"{SHARED_DUTY} on a GPU" in " ".join(done.stdout.split())


def test_a_missing_extra_is_one_line_with_the_command_that_helps() -> None:
    with pytest.raises(RequestError, match=r"torch, transformers, fastapi, uvicorn not installed: run pip install"):
        require_extra(lambda package: False)


@pytest.mark.parametrize(
    ("text", "expected"), [("2.5GiB", 2_684_354_560), ("800MB", 800_000_000), ("4096", 4096), ("1 kib", 1024)]
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GB", "1.5.2GB", "3 parsecs"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_bytes(text)


@pytest.fixture
def root_handlers() -> Iterator[None]:
    with own_logs():
        yield


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main([*arguments, "--port", "0"], environ={})
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(lines) == 1, lines
    return code, lines[0]


def test_failures_end_with_one_line_and_their_exit_code(
    capsys: pytest.CaptureFixture[str], root_handlers: None, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    code, line = outcome(capsys)
    assert code == 2
    assert "--model" in line
    code, line = outcome(capsys, "--model", str(tmp_path / "none"))
    assert code == 3
    assert "no such folder" in line
    code, line = outcome(capsys, "--model", str(checkpoint("hybrid")), "--device", "cpu")
    assert code == 4
    assert "--allow-reference-kernels" in line
    code, line = outcome(capsys, "--model", str(checkpoint("llama")), "--store-memory", "lots")
    assert code == 2
    code, line = outcome(capsys, "--model", str(checkpoint("llama")), "--host", "0.0.0.0")
    assert code == 2
    assert "--open-to-network" in line
    code, line = outcome(
        capsys, "--model", str(checkpoint("llama")), "--spill-dir", str(checkpoint("llama") / "config.json")
    )
    assert code == 2
    assert "--spill-dir" in line
    damaged = Path(shutil.copytree(checkpoint("llama"), tmp_path / "damaged"))
    with (damaged / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 100)
    code, line = outcome(capsys, "--model", str(damaged), "--device", "cpu")
    assert code == 3
    assert "cut short" in line


def test_the_program_says_its_address_serves_and_stops_on_sigterm(checkpoint: Checkpoint) -> None:
    arguments = ["--model", str(checkpoint("hybrid")), "--device", "cpu", "--allow-reference-kernels", "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            ready = next(line for line in process.stderr if "ready at" in line)
            url = ready.split()[-1]
            answer = httpx.post(
                f"{url}/hidden_states", json={"text": "abc", "layers": [1], "return": "handle"}, timeout=60
            )
            assert answer.json()["shape"] == [1, 3, 64]
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
            assert process.wait(60) in (0, -signal.SIGTERM)
        finally:
            process.kill()
    records = [json.loads(line) for line in rest.splitlines() if line.startswith("{")]
    assert any(record.get("route") == "/hidden_states" for record in records)
    assert "abc" not in rest, "no prompt text in logs"
