"""Shared by the integration tests: the model, our services over it, and the reports that `docs/engines.md` sums up."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.asks import Sources, turn_for
from engines.bridge import LocalBridge
from engines.drafter import train
from engines.environments import ENVIRONMENTS, SetUpError, versions
from engines.layout import REPORTS
from engines.prompts import FRESH, PROMPTS, messages
from engines.servers import ENGINES, Server, serving
from engines.services import drafter_service, target_service
from engines.smollm2 import obtain
from tauscope_client.references.source import Completion
from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The converted checkpoint."""
    return obtain()


@pytest.fixture(scope="session")
def bridge(smollm2: Path) -> LocalBridge:
    """The model's tokenizer in this process."""
    return LocalBridge(smollm2)


@pytest.fixture(scope="session")
def target_url(smollm2: Path) -> Iterator[str]:
    """Our target service over the same weights, in float32."""
    with target_service(smollm2) as url:
        yield url


@pytest.fixture
def target(target_url: str) -> Iterator[TargetClient]:
    """A client of it."""
    with Connection(target_url) as connection:
        yield TargetClient(connection)


@pytest.fixture(scope="session")
def source_at(bridge: LocalBridge) -> Iterator[Sources]:
    """Opens sources of references."""
    sources = Sources(bridge)
    yield sources
    sources.close()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, smollm2: Path) -> Iterator[Server]:
    """The engine that the module is about (its `ENGINE`), started once for all its tests."""
    with serving(ENGINES[request.module.ENGINE]) as running:
        yield running


@pytest.fixture(scope="module")
def references(
    request: pytest.FixtureRequest, server: Server, source_at: Sources, bridge: LocalBridge
) -> dict[str, Completion]:
    """Greedy answers of that engine to the module's `NAMES`, one at a time; a tail where it can give one."""
    source = source_at(server)
    return {name: source.complete(turn_for(bridge, name, tail_tokens=8)) for name in request.module.NAMES}


@pytest.fixture(scope="session")
def small_drafter(smollm2: Path) -> Path:
    """The DFlash drafter that nearly knows eight answers by heart."""
    return train()


@pytest.fixture(scope="session")
def drafter_url(target_url: str, smollm2: Path, small_drafter: Path) -> Iterator[str]:
    """Our drafter service with that drafter, named `small`."""
    with drafter_service(target_url, smollm2, {"small": small_drafter}) as url:
        yield url


@pytest.fixture
def tiny_run(
    request: pytest.FixtureRequest, prompts_file: Path, target_url: str, drafter_url: str
) -> Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]:
    """`tauscope eval` on the prompts with references from the place given; returns results and references."""

    def run(reference: str, *extra: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        out = REPORTS / "runs" / request.node.name  # kept, to look into a difference afterwards
        shutil.rmtree(out, ignore_errors=True)
        command = (
            *(sys.executable, "-m", "tauscope_client.cli", "eval", str(prompts_file), "--drafter", "small"),
            *("--reference", reference, "--target", target_url, "--drafter-url", drafter_url, "--out", str(out)),
            *("--max-new-tokens", "96", "--tail-tokens", "16", "--dtype", "float32", *extra),
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        print(done.stdout)
        frozen = [json.loads(line) for line in (out / "references.jsonl").read_text().splitlines()]
        return json.loads((out / "results.json").read_text()), frozen

    return run


@pytest.fixture
def prompts_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The prompts of these tests, the module's `NAMES` or all, as a user's prompts file."""
    path = tmp_path / "prompts.jsonl"
    lines = [
        {
            "id": name,
            "split": "fresh" if name in FRESH else "train",
            "messages": [message.model_dump() for message in messages(name)],
        }
        for name in getattr(request.module, "NAMES", PROMPTS)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


@pytest.fixture(scope="session")
def report() -> Callable[[str, dict[str, Any]], None]:
    """Keep numbers of a run under `.engines/reports/`, and print them."""

    def keep(name: str, numbers: dict[str, Any]) -> None:
        REPORTS.mkdir(parents=True, exist_ok=True)
        engine = name.split("-", maxsplit=1)[0]
        found = versions(ENVIRONMENTS[engine]) if engine in ENVIRONMENTS else {}
        (REPORTS / f"{name}.json").write_text(json.dumps({"versions": found, **numbers}, indent=1) + "\n")
        print(f"\n{name}: {json.dumps(numbers)}")

    return keep


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    """An engine that cannot be set up on this machine fails its tests in one line: not run, never passed."""
    try:
        return (yield)
    except SetUpError as error:
        pytest.fail(f"NOT RUN: {error}", pytrace=False)
