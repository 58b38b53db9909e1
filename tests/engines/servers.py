"""Starts an engine on loopback, waits until it answers, stops it with everything it started.

Only flags that a CPU needs, or that make an answer reproducible, are set here; a test adds its own.
"""

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engines.environments import ENVIRONMENTS, interpreter, set_up
from engines.layout import LOGS, SMOLLM2, SMOLLM2_GGUF
from engines.processes import free_port, running_process

__all__ = ["ENGINES", "Engine", "Server", "serving"]

CONTEXT_TOKENS: Final = 1024
"""Small, so that a context overflow is cheap to provoke and the cache fits beside other processes."""


@dataclass(frozen=True)
class Engine:
    """How to start one engine.

    Attributes:
        name: of the environment and of the recorded vectors.
        command: after the interpreter; `{model}`, `{port}`, `{context}` are filled in.
        environ: beside that of `engines.processes`.
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
                *("--max-queued-requests", "2"),
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
    log = LOGS / f"{engine.name}-{label}.log"
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    with running_process(
        command,
        ready_url=url + engine.ready_path,
        log=log,
        environ={**engine.environ, "PYTHONPATH": str(environment.shim_folder), **(environ or {})},
        headers={} if key is None else {"Authorization": f"Bearer {key}"},
    ) as process:
        name = engine.served_name or str(model)
        yield Server(engine, url, process.pid, name, command, time.monotonic() - began, log)


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
