"""Starts an engine on loopback, waits until it answers, stops it with everything it started.

Only flags that a CPU needs, or that make an answer reproducible, are set here; a test adds its own.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from engines.environments import ENVIRONMENTS, interpreter, set_up
from engines.layout import LOGS, SMOLLM2, SMOLLM2_GGUF

__all__ = ["ENGINES", "Engine", "Server", "StartError", "free_port", "serving"]

START_TIMEOUT_S: Final = 600
"""SGLang and vLLM start in 60 to 90 s on two quiet cores, several times longer beside other work."""

POLL_S: Final = 0.5
CONTEXT_TOKENS: Final = 1024
"""Small, so that a context overflow is cheap to provoke and the cache fits beside other processes."""

QUIET: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
}


class StartError(RuntimeError):
    """The server did not become ready; the message holds the end of its log."""


@dataclass(frozen=True)
class Engine:
    """How to start one engine.

    Attributes:
        name: of the environment and of the recorded vectors.
        command: after the interpreter; `{model}`, `{port}`, `{context}` are filled in.
        environ: beside `QUIET`.
        ready_path: answers 200 once requests can be served.
        served_name: the name of the model in requests; None: the model's path.
        model: default model.
        key_option: option that sets an API key; None where the engine has none.
    """

    name: str
    command: tuple[str, ...]
    ready_path: str
    served_name: str | None = "smollm2"
    environ: Mapping[str, str] = field(default_factory=dict)
    model: Path = SMOLLM2
    key_option: str | None = None


ENGINES: Final[dict[str, Engine]] = {
    engine.name: engine
    for engine in (
        Engine(
            name="sglang",
            command=(
                *("-m", "sglang.launch_server", "--model-path", "{model}", "--served-model-name", "smollm2"),
                *("--host", "127.0.0.1", "--port", "{port}", "--device", "cpu", "--dtype", "float32"),
                *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
                *("--context-length", "{context}", "--max-total-tokens", "4096", "--max-running-requests", "4"),
                *("--disable-cuda-graph", "--disable-overlap-schedule", "--skip-server-warmup", "--enable-metrics"),
            ),
            environ={"SGLANG_USE_CPU_ENGINE": "1"},
            ready_path="/health",
            key_option="--api-key",
        ),
        Engine(
            name="vllm",
            command=(
                *("-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--served-model-name", "smollm2"),
                *("--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32", "--max-model-len", "{context}"),
                *("--enforce-eager", "--max-num-seqs", "4"),
            ),
            environ={
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_NO_USAGE_STATS": "1",
            },
            ready_path="/health",
            key_option="--api-key",
        ),
        Engine(
            name="transformers",
            command=(
                *("-m", "transformers.cli.transformers", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
                *("--device", "cpu", "--dtype", "float32"),
            ),
            ready_path="/health",
            served_name=None,
        ),
        Engine(
            name="llamacpp",
            command=(
                *("-m", "llama_cpp.server", "--model", "{model}", "--model_alias", "smollm2", "--host", "127.0.0.1"),
                *("--port", "{port}", "--n_ctx", "{context}", "--n_threads", "1", "--logits_all", "true"),
            ),
            ready_path="/v1/models",
            model=SMOLLM2_GGUF,
            key_option="--api_key",
        ),
    )
}


@dataclass(frozen=True)
class Server:
    """A running engine."""

    engine: Engine
    url: str
    pid: int
    model_name: str
    command: tuple[str, ...]
    start_s: float
    log: Path


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    engine: Engine,
    *,
    model: Path | None = None,
    extra: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    port: int | None = None,
    key: str | None = None,
    label: str = "server",
) -> Iterator[Server]:
    """Start the engine in its own process group, yield it ready, and end the whole group.

    Raises:
        SetUpError: its environment cannot be built.
        StartError: it ended, or did not become ready in time.
    """
    environment = ENVIRONMENTS[engine.name]
    set_up(environment)
    model = engine.model if model is None else model
    port = free_port() if port is None else port
    filled = [part.format(model=model, port=port, context=CONTEXT_TOKENS) for part in engine.command]
    if key is not None:
        filled += [str(engine.key_option), key]
    command = (str(interpreter(environment)), *filled, *extra)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{engine.name}-{label}.log"
    began = time.monotonic()
    with log.open("w") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                **QUIET,
                **engine.environ,
                "PYTHONPATH": str(environment.shim_folder),
                **(environ or {}),
            },
        )
    try:
        url = f"http://127.0.0.1:{port}"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        _wait(process, url + engine.ready_path, headers, log)
        name = engine.served_name or str(model)
        yield Server(engine, url, process.pid, name, command, time.monotonic() - began, log)
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
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue
    process.wait(timeout=20)


def main(arguments: Sequence[str]) -> int:
    """`python -m engines.servers ENGINE [OPTION...]`: serve in the foreground until interrupted."""
    with serving(ENGINES[arguments[0]], extra=arguments[1:]) as server:
        sys.stdout.write(f"{server.url} pid {server.pid} ready after {server.start_s:.1f} s, log {server.log}\n")
        sys.stdout.flush()
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
