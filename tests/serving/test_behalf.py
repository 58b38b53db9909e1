"""The drafter reads handles on behalf of its caller: a key gets drafts only from states that it may read itself."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import torch

from kit import drafters
from kit.models import tiny_qwen3
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.app import DrafterService
from tauscope_drafter.app import create_app as create_drafter
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.states import StatesSource
from tauscope_serving.keyfile import add_key, revoke_key
from tauscope_serving.keys import Keyring
from tauscope_serving.service import Access
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app as create_target
from tauscope_target.settings import TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_wire.connection import Connection

IDS = [5 + (7 * i) % 50 for i in range(24)]


class Pair(NamedTuple):
    """Both services and the keys of two teams."""

    target: str
    drafter: str
    keys_file: Path
    keys: dict[str, str]

    def hidden(self, team: str, *, shared: bool = False) -> str:
        body = {
            "token_ids": IDS,
            "layers": list(drafters.TAPS),
            "return": "handle",
            "dtype": "float32",
            "shared": shared,
        }
        answer = httpx.post(f"{self.target}/hidden_states", json=body, headers=self.headers(team))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["handle"])

    def draft(self, team: str, handle: str) -> httpx.Response:
        body = {"drafter": "good", "hidden": {"handle": handle}, "token_ids": IDS, "response_start": 10, "top_k": 2}
        return httpx.post(f"{self.drafter}/draft_block", json=body, headers=self.headers(team))

    def headers(self, team: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[team]}"}


class Clock:
    """A clock under which every look at the keys file is due."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("behalf")
    keys_file = root / "keys.json"
    keys = {team: add_key(keys_file, team, roles=("read", "extract", "draft")) for team in ("a", "b")}
    keys["blind"] = add_key(keys_file, "blind", roles=("draft",))
    folder = tiny_qwen3(
        root / "target",
        num_hidden_layers=drafters.TARGET_LAYERS,
        hidden_size=drafters.HIDDEN,
        vocab_size=drafters.VOCAB,
    )
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS, keys_file=keys_file), store_bytes=1 << 24)
    access = [Access(keyring=Keyring(keys_file, clock=Clock())) for _ in range(2)]
    target = create_target(start_engine(EngineSettings(folder, "cpu")), None, settings, access=access[0])
    drafters.write_folder(root / "good", drafters.dflash_config(), drafters.dflash_tensors())
    engine = Engine(open_place(torch.device("cpu"), torch.float32, drafters.write_target(root / "tables")))
    engine.load("good", root / "good", LoadOptions(), roots=None)
    with running(target) as target_url, Connection(target_url) as upstream:
        service = DrafterService(
            engine=engine,
            states=StatesSource(upstream),
            limits=SMALL_LIMITS,
            version=version("tauscope"),
            access=access[1],
        )
        with running(create_drafter(service)) as drafter_url:
            yield Pair(target_url, drafter_url, keys_file, keys)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_handle_gives_drafts_to_the_key_that_made_it_and_is_gone_for_others(pair: Pair) -> None:
    handle = pair.hidden("a")
    for _ in range(2):  # the second time from the context that the drafter keeps
        assert pair.draft("a", handle).status_code == 200
        assert code_of(pair.draft("b", handle)) == (410, "handle_gone")


def test_equal_requests_of_two_keys_have_handles_that_tell_nothing_of_each_other(pair: Pair) -> None:
    assert pair.hidden("a") != pair.hidden("b")
    assert pair.hidden("a") == pair.hidden("a")


def test_a_shared_handle_gives_drafts_to_others(pair: Pair) -> None:
    handle = pair.hidden("b", shared=True)
    assert pair.draft("a", handle).status_code == 200


def test_a_key_that_may_draft_but_not_read_is_told_which_role_it_needs(pair: Pair) -> None:
    answer = pair.draft("blind", pair.hidden("a"))
    assert code_of(answer) == (403, "role_required")
    assert "the role 'read'" in answer.json()["error"]["message"]


def test_a_later_key_of_the_same_name_does_not_inherit_contexts(pair: Pair) -> None:
    pair.keys["c"] = add_key(pair.keys_file, "c", roles=("read", "extract", "draft"))
    handle = pair.hidden("c")
    assert pair.draft("c", handle).status_code == 200
    revoke_key(pair.keys_file, "c")
    assert code_of(pair.draft("c", handle)) == (401, "key_unknown")


def test_the_request_id_of_the_caller_is_in_the_logs_of_both_services(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [*IDS[:-1], 77]  # a sequence of its own: its context is not kept yet
    asked = {"token_ids": ids, "layers": list(drafters.TAPS), "return": "handle"}
    handle = httpx.post(f"{pair.target}/hidden_states", json=asked, headers=pair.headers("b")).json()["handle"]
    caplog.clear()
    caplog.set_level("INFO", logger="tauscope.access")
    body = {"drafter": "good", "hidden": {"handle": handle}, "token_ids": ids, "response_start": 12, "top_k": 3}
    answer = httpx.post(
        f"{pair.drafter}/draft_block", json=body, headers=pair.headers("b") | {"X-Request-Id": "run-1.prompt-7"}
    )
    assert answer.status_code == 200
    expected = {("GET", "/hidden_states/{handle}"), ("POST", "/draft_block")}
    for _ in range(1000):  # a line is written after the last byte of its answer
        httpx.get(f"{pair.drafter}/healthz")
        lines = [record.fields for record in caplog.records if record.name == "tauscope.access"]
        seen = {(line["method"], line["route"]) for line in lines if line["request_id"] == "run-1.prompt-7"}
        if seen == expected:
            return
    raise AssertionError(f"only {seen}")
