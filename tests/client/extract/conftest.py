"""A data set of four texts, and `tauscope extract` against the service without weights."""

import json

import pytest

from tauscope_client.cli import main
from tauscope_client.extract.extracting import extract
from tauscope_client.extract.fleet import Fleet
from tauscope_client.extract.layouts import LAYOUTS
from tauscope_client.extract.rate import SilentMeter
from tauscope_client.extract.settings import ExtractSettings
from tauscope_client.references.retries import Retries
from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [
        {"id": "reference", "prompt_ids": [3, 4, 5], "response_ids": [6, 7]},
        {"id": "masked", "input_ids": [8, 9, 10, 11], "loss_mask": [0, 1, 1, 0]},
        {"id": "started", "token_ids": [5, 6, 7, 8, 9], "response_start": 2},
        {"id": "long", "prompt_ids": [9] * 20, "response_ids": [12] * 10},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def cli(services, capsys):
    """Gives the exit code and everything that was said."""

    def call(*arguments):
        code = main(["extract", *map(str, arguments), "--target", services.target_url])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out + said.err

    return call


@pytest.fixture
def run(services):
    """Calls `extract` with one client; `wrap` may put something around it."""

    def call(texts, folder, *, wrap=lambda client: client, layout="plain", free_bytes=lambda _: 1 << 40, **changed):
        verify = changed.pop("verify", False)
        settings = ExtractSettings(
            **{"layers": [1, 16], "layout": LAYOUTS[layout], "concurrency": 1, **changed},
        )
        with Connection(services.target_url) as connection:
            fleet = Fleet([wrap(TargetClient(connection))])
            return extract(
                texts,
                folder,
                settings,
                fleet=fleet,
                meter=SilentMeter(),
                verify=verify,
                retries=Retries(attempts=1),
                free_bytes=free_bytes,
            )

    return call
