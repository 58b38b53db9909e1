"""The probe over real HTTP, against services without weights."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from kit.engines import TableModel
from kit.probe import conditioned_drafter
from kit.serve import running
from kit.table_services import Ledger, target_app


@dataclass
class Probed:
    target_url: str
    drafter_url: str
    ledger: Ledger


@pytest.fixture
def probed():
    """Start both services; the argument says how good the drafter is under which conditions."""

    @contextmanager
    def start(skill, **card):
        ledger = Ledger()
        with (
            running(target_app(TableModel(), ledger)) as target_url,
            running(conditioned_drafter(ledger, skill, card=card)) as drafter_url,
        ):
            yield Probed(target_url, drafter_url, ledger)

    return start


@pytest.fixture
def prompts_path(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"{'a question ' * (1 + i % 4)}number {i}\n" for i in range(9)))
    return path
