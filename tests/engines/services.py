"""Our own two services as processes of their own, as a user starts them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from engines.layout import LOGS
from engines.processes import free_port, running_process

__all__ = ["drafter_service", "target_service"]


@contextmanager
def target_service(model: Path, *extra: str, label: str = "target") -> Iterator[str]:
    """Serve `model` in float32 on the CPU; yields the address.

    Raises:
        StartError: it did not become ready.
    """
    port = free_port()
    command = (
        *(sys.executable, "-m", "tauscope_target.cli", "--model", str(model), "--device", "cpu"),
        *("--port", str(port), "--max-tokens", "2048", *extra),
    )
    url = f"http://127.0.0.1:{port}"
    with running_process(command, ready_url=f"{url}/readyz", log=LOGS / f"tauscope-{label}.log"):
        yield url


@contextmanager
def drafter_service(
    target_url: str, target_model: Path, drafters: Mapping[str, Path], *extra: str, label: str = "drafter"
) -> Iterator[str]:
    """Serve drafters beside a target service; yields the address.

    Raises:
        StartError: it did not become ready.
    """
    port = free_port()
    loads = [part for name, path in drafters.items() for part in ("--drafter", f"{name}={path}")]
    command = (
        *(
            sys.executable,
            "-m",
            "tauscope_drafter.cli",
            "--target-url",
            target_url,
            "--target-model",
            str(target_model),
        ),
        *(*loads, "--device", "cpu", "--port", str(port), *extra),
    )
    url = f"http://127.0.0.1:{port}"
    with running_process(command, ready_url=f"{url}/readyz", log=LOGS / f"tauscope-{label}.log"):
        yield url
