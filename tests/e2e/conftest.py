"""Both services as their own console scripts, with the bundled models, on free ports of loopback."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import demo


class Services(NamedTuple):
    """Addresses of the running services."""

    target: str
    drafter: str
    logs: Path


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The demo's two services: drafters `trained` and `early`."""
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        yield Services(*(stack.enter_context(service) for service in demo.services(logs)), logs)


@pytest.fixture(scope="session")
def models() -> Path:
    """Folder of the bundled models."""
    return demo.MODELS
