"""Runs a server process until it answers, and ends it with everything it started."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

__all__ = ["StartError", "free_port", "running_process"]

START_TIMEOUT_S: Final = 1800
"""SGLang and vLLM start in 60 to 90 s on two quiet cores; with ten processes beside them SGLang took 500 s."""

POLL_S: Final = 0.5
STOP_TIMEOUT_S: Final = 20

QUIET: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
}


class StartError(RuntimeError):
    """The server did not become ready; the message holds the end of its log."""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_process(
    command: Sequence[str],
    *,
    ready_url: str,
    log: Path,
    environ: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command` in its own process group, yield it once `ready_url` answers 200, and end the whole group.

    Raises:
        StartError: it ended, or did not become ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as sink:
        process = subprocess.Popen(
            list(command),
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **QUIET, **(environ or {})},
        )
    try:
        _wait(process, ready_url, headers or {}, log)
        yield process
    finally:
        _stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, headers: Mapping[str, str], log: Path) -> None:
    """Until the readiness path answers 200. The pause between tries ends early when the process does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, headers=headers, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        try:
            process.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            continue
        break
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise StartError(f"not ready at {url} (exit {process.poll()}); see {log}\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: engines leave workers behind when only their first process ends."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(timeout=STOP_TIMEOUT_S)
