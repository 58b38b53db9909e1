"""What the tests of the client share: both services without weights, and a prompts file."""

import json

import pytest

from kit.client import PROMPTS, table_services


@pytest.fixture(scope="session")
def running_services():
    with table_services() as both:
        yield both


@pytest.fixture
def services(running_services):
    running_services.ledger.reset()
    return running_services


@pytest.fixture
def prompts_path(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path
