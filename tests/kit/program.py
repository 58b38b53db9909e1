"""Runs the services' own programs as processes, as their console scripts do; works from a plain checkout, too."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import tauscope_client
import tauscope_serving
import tauscope_target
import tauscope_wire

PACKAGES = (tauscope_client, tauscope_serving, tauscope_target, tauscope_wire)
STOP_TIMEOUT_S = 60.0


@dataclass
class Program:
    """A program that serves.

    Attributes:
        url: where.
        process: it.
        lines: what it has written to standard error so far.
    """

    url: str
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of `python -m module`."""
    return [sys.executable, "-m", module, *arguments]


def environment(**extra: str) -> Mapping[str, str]:
    """That of this process, with the packages of this checkout on the path."""
    folders = [str(Path(str(package.__file__)).parents[1]) for package in PACKAGES]
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"} | extra


def run_program(module: str, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command(module, arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextmanager
def serving(*commands: Sequence[str]) -> Iterator[list[Program]]:
    """Start `tauscope-target` once per command line, all at once; wait until each says that it is ready.

    Raises:
        RuntimeError: one ended before; with what it wrote.
    """
    started = [
        subprocess.Popen(
            command("tauscope_target.cli", [*arguments, "--port", "0"]),
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for arguments in commands
    ]
    try:
        yield [_ready(process) for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[str]) -> Program:
    assert process.stderr is not None
    program = Program("", process)
    for line in process.stderr:
        program.lines.append(line)
        if "ready at" in line:
            program.url = line.split()[-1]
            # its log goes on: a full pipe would stop it
            threading.Thread(target=_drain, args=(process.stderr, program.lines), daemon=True).start()
            return program
    raise RuntimeError("the service ended:\n" + "".join(program.lines))


def _drain(stream: TextIO, lines: list[str]) -> None:
    with stream:
        lines.extend(stream)
