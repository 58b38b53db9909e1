"""`deploy/box/install.sh` in an empty prefix: nothing outside is touched, and what it made runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.echo import Echo
from kit.serve import running

BOX = Path(__file__).parents[2] / "deploy" / "box"


def install(*arguments: str, environ: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [str(BOX / "install.sh"), *arguments]
    environment = dict(os.environ) | (environ or {})
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: install.sh PREFIX"),
        (("--torch",), "--torch needs a value"),
        (("--colour", "red", "/x"), "unknown option --colour"),
        (("/x", "/y"), "two prefixes"),
        (("/a b",), "blanks"),
        (("/x", "--source", "/no/such"), "--source /no/such: no such file or folder"),
        (("/x", "--python", "no-such-python"), "--python no-such-python: no such program"),
    ],
)
def test_wrong_usage_is_said_in_one_line_and_nothing_is_made(arguments: tuple[str, ...], message: str) -> None:
    done = install(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not Path("/x").exists()


def test_a_folder_of_somebody_else_is_not_installed_into(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = install(str(tmp_path), "--python", sys.executable)
    assert done.returncode == 2
    assert "is not empty and was not made by this script" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_waiting_ends_when_the_service_is_ready_and_fails_after_its_time(tmp_path: Path) -> None:
    wait = [str(BOX / "wait-ready.sh")]
    echo = Echo()
    with running(echo.app) as url:
        assert subprocess.run([*wait, f"{url}/readyz", "10"], check=False).returncode == 0
        echo.not_ready.append("loading")
        late = subprocess.run([*wait, f"{url}/readyz", "0"], check=False, capture_output=True, text=True)
    assert late.returncode == 1
    assert "did not answer 200 within 0 s" in late.stderr


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if ".rustup" in path.parts:
            continue  # pip asks `rustc --version` for its user agent, and some rustc make this folder when asked
        status = path.lstat()
        found[str(path)] = (status.st_size, status.st_mtime_ns)
    return found


@pytest.mark.slow
def test_a_dry_run_makes_a_working_prefix_and_touches_nothing_else(tmp_path: Path) -> None:
    home, engine, prefix = tmp_path / "home", tmp_path / "engine", tmp_path / "opt" / "tauscope"
    home.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(engine)], check=True)  # the engine's own
    before = snapshot(home) | snapshot(engine)
    environ = {"HOME": str(home), "VIRTUAL_ENV": str(engine), "PYTHONPATH": str(engine), "PIP_NO_CACHE_DIR": "1"}
    arguments = (str(prefix), "--python", sys.executable, "--torch", "none", "--extra", "serving")
    arguments += ("--sglang-unit", "engine.service", "--user", "nobody")
    done = install(*arguments, environ=environ)
    assert done.returncode == 0, done.stderr
    assert snapshot(home) | snapshot(engine) == before

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    for name in ("tauscope", "tauscope-target", "tauscope-drafter"):
        assert run(str(prefix / "bin" / name), "--help").returncode == 0
    keys = prefix / "etc" / "keys.json"
    added = run(str(prefix / "bin" / "tauscope-target"), "keys", "add", "team-a", "--keys", str(keys))
    assert added.stdout.startswith("tsk_")
    refused = run(str(prefix / "bin" / "tauscope-target"), "--model", "/models/target")
    assert refused.returncode == 2  # torch was left out on purpose: one line says so
    assert "torch" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    units = {path.name: path.read_text() for path in (prefix / "units").iterdir()}
    assert set(units) == {"tauscope-target.service", "tauscope-drafter.service", "tauscope.slice"}
    for text in units.values():
        assert "@" not in text
    assert f"ExecStart={prefix}/venv/bin/tauscope-target --model" in units["tauscope-target.service"]
    assert "After=network-online.target engine.service" in units["tauscope-target.service"]
    assert "User=nobody" in units["tauscope-drafter.service"]
    assert (prefix / "etc" / "target.env").stat().st_mode & 0o777 == 0o600

    (prefix / "etc" / "target.env").write_text("TARGET_MODEL=/mine\n")
    again = install(*arguments, environ=environ)
    assert again.returncode == 0, again.stderr
    assert (prefix / "etc" / "target.env").read_text() == "TARGET_MODEL=/mine\n"
    assert keys.exists()
