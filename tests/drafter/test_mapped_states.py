"""A drafter beside its target maps the states of a handle: the same drafts, the same refusals, no payload over HTTP."""

import asyncio
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgpack
import numpy as np
import pytest
import torch
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from kit import drafters
from kit.models import tiny_qwen3
from kit.serve import SMALL_LIMITS, running
from tauscope_client.drafter import DrafterClient
from tauscope_client.drafting import DraftPlan, Draftsman
from tauscope_client.references.record import Reference, ids_sha256
from tauscope_client.target import TargetClient
from tauscope_drafter.app import DrafterService
from tauscope_drafter.app import create_app as create_drafter
from tauscope_drafter.arrays import to_torch
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.mapped_states import ASK_AGAIN_S, MappedReader, is_on_this_machine
from tauscope_drafter.states import StatesSource
from tauscope_serving.keyfile import add_key
from tauscope_serving.keys import Keyring
from tauscope_serving.service import Access
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app as create_target
from tauscope_target.engine import TorchEngine
from tauscope_target.settings import TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_wire.connection import Connection
from tauscope_wire.messages import DrafterCard, HiddenReceipt, HiddenRequest

LENGTH, START = 40, 12
STORE_BYTES = 120_000
"""Five texts of `LENGTH` tokens with four float32 planes: tests run over many evictions."""
ROLES = {"a": ("read", "extract", "draft"), "b": ("read", "extract", "draft"), "blind": ("draft",)}
ROLES |= {"reader": ("read", "extract"), "boss": ("admin",)}


def ids(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(4, drafters.VOCAB, LENGTH).tolist()


class Box(NamedTuple):
    """A target that keeps states in files, a drafter that maps them, and one that does not."""

    target: str
    mapping: str
    plain: str
    app: FastAPI
    folder: Path
    keys: dict[str, str]
    card: DrafterCard

    def headers(self, team: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[team]}"}

    def hidden(self, team: str, seed: int, *, shared: bool = False, final_norm: bool = False) -> str:
        body = {
            "token_ids": ids(seed),
            "layers": list(drafters.TAPS),
            "return": "handle",
            "dtype": "float32",
            "shared": shared,
            "final_norm": final_norm,
        }
        answer = httpx.post(f"{self.target}/hidden_states", json=body, headers=self.headers(team))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["handle"])

    def draft(self, team: str, handle: str, seed: int, *, at: str | None = None) -> httpx.Response:
        body = {"drafter": "good", "hidden": {"handle": handle}, "token_ids": ids(seed), "response_start": START}
        url = f"{at or self.mapping}/draft_block"
        return httpx.post(url, json=body | {"top_k": 3}, headers=self.headers(team), timeout=60)

    def file(self, team: str, handle: str) -> httpx.Response:
        return httpx.get(f"{self.target}/hidden_states/{handle}/file", headers=self.headers(team))

    def files(self) -> set[Path]:
        return set(self.folder.glob("*.safetensors"))

    def count(self, url: str, name: str) -> float:
        """Sum of a metric over its labels."""
        text = httpx.get(f"{url}/metrics", headers=self.headers("boss")).text
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return sum(sample.value for sample in samples if sample.name == name)

    def reads(self) -> tuple[float, float]:
        """Handles that the mapping drafter has mapped, and read over HTTP."""
        names = ("tauscope_drafter_contexts_mapped_total", "tauscope_drafter_contexts_http_total")
        return self.count(self.mapping, names[0]), self.count(self.mapping, names[1])


@pytest.fixture(scope="module")
def target_engine(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    folder = tiny_qwen3(
        tmp_path_factory.mktemp("mapped") / "target",
        num_hidden_layers=drafters.TARGET_LAYERS,
        hidden_size=drafters.HIDDEN,
        vocab_size=drafters.VOCAB,
    )
    return start_engine(EngineSettings(folder, "cpu"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    root = tmp_path_factory.mktemp("drafter")
    drafters.write_folder(root / "good", drafters.dflash_config(), drafters.dflash_tensors())
    place = open_place(torch.device("cpu"), torch.float32, drafters.write_target(root / "tables"))
    engine = Engine(place, context_bytes=0)  # no context is kept, so that every request reads its handle
    engine.load("good", root / "good", LoadOptions(), roots=None)
    return engine


@pytest.fixture(scope="module")
def box(target_engine: TorchEngine, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    root = tmp_path_factory.mktemp("box")
    keys = {team: add_key(root / "keys.json", team, roles=roles) for team, roles in ROLES.items()}  # type: ignore[arg-type]
    access = Access(keyring=Keyring(root / "keys.json"))
    settings = TargetSettings(
        serving=ServingSettings(limits=SMALL_LIMITS, keys_file=root / "keys.json"),
        store_bytes=STORE_BYTES,
        store_dir=root / "states",
    )
    app = create_target(target_engine, None, settings, access=access)

    def drafter(upstream: Connection, *, mapping: bool) -> FastAPI:
        source = StatesSource(upstream, mapping=mapping)
        return create_drafter(
            DrafterService(engine=engine, states=source, limits=SMALL_LIMITS, version="1", access=access)
        )

    with (
        running(app) as target_url,
        Connection(target_url) as upstream,
        running(drafter(upstream, mapping=True)) as mapping,
        running(drafter(upstream, mapping=False)) as plain,
    ):
        yield Box(target_url, mapping, plain, app, root / "states", keys, engine.cards()[0])
    assert not (root / "states").exists()  # a service that ends leaves nothing behind


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def drafts_of(answer: httpx.Response) -> dict[str, Any]:
    """The arrays of an answer as bytes, and by which ways its states came."""
    assert answer.status_code == 200, answer.text
    body = msgpack.unpackb(answer.content)
    return {name: body[name] for name in ("anchors", "token_ids", "top_ids", "top_logprobs")} | {
        "ways": [name for name in body["timing_ms"] if name.startswith("read_")]
    }


def test_drafts_are_equal_both_ways_and_a_mapped_read_sends_no_payload(box: Box) -> None:
    handle = box.hidden("a", 1)
    sent, (mapped, over_http) = box.count(box.target, "tauscope_target_answer_bytes_total"), box.reads()
    by_file = drafts_of(box.draft("a", handle, 1))
    assert box.count(box.target, "tauscope_target_answer_bytes_total") == sent
    assert box.reads() == (mapped + 1, over_http)
    by_http = drafts_of(box.draft("a", handle, 1, at=box.plain))
    # the context of the last anchor, len - 2: three planes of float32, and the head of the answer
    payload = len(drafters.TAPS) * (LENGTH - 2) * drafters.HIDDEN * 4
    assert box.count(box.target, "tauscope_target_answer_bytes_total") >= sent + payload
    assert by_file.pop("ways") == ["read_mapped"]
    assert by_http.pop("ways") == ["read_http"]
    assert by_file == by_http


def test_expected_acceptance_reads_the_final_norm_from_the_file_too(box: Box) -> None:
    handle = box.hidden("a", 2, final_norm=True)
    body = {"drafter": "good", "hidden": {"handle": handle}, "token_ids": ids(2), "response_start": START}
    answers = [
        httpx.post(f"{url}/expected_acceptance", json=body | {"temperature": 0.7}, headers=box.headers("a"))
        for url in (box.mapping, box.plain)
    ]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    by_file, by_http = (
        {k: v for k, v in msgpack.unpackb(answer.content).items() if k != "timing_ms"} for answer in answers
    )
    assert by_file == by_http


@pytest.mark.parametrize("taps", [(1, 3, 4), (3, 4), (1, 4), (4, 1, 3), (3,)])
def test_planes_come_in_the_order_of_the_taps(box: Box, taps: tuple[int, ...]) -> None:
    handle = box.hidden("a", 3, final_norm=True)
    card = box.card.model_copy(update={"taps": list(taps)})
    for final_norm in (False, True):
        found = []
        for mapping in (True, False):
            with Connection(box.target) as upstream:
                source = StatesSource(upstream, mapping=mapping)
                found.append(source.fetch(handle, card, ids(3), 20, key=box.keys["a"], final_norm=final_norm))
        assert [one.way for one in found] == ["mapped", "http"]
        assert found[0].numerics == found[1].numerics
        np.testing.assert_array_equal(found[0].states, found[1].states)


def test_another_key_gets_the_same_refusal_both_ways(box: Box) -> None:
    handle = box.hidden("a", 4)
    refusals = [box.draft("b", handle, 4, at=url) for url in (box.mapping, box.plain)]
    assert [code_of(answer) for answer in refusals] == [(410, "handle_gone")] * 2
    assert len({answer.json()["error"]["message"] for answer in refusals}) == 1
    assert code_of(box.file("b", handle)) == (410, "handle_gone")
    assert box.draft("a", handle, 4).status_code == 200
    blind = [box.draft("blind", handle, 4, at=url) for url in (box.mapping, box.plain)]
    assert [code_of(answer) for answer in blind] == [(403, "role_required")] * 2
    assert len({answer.json()["error"]["message"] for answer in blind}) == 1


def test_a_shared_handle_is_mapped_for_others(box: Box) -> None:
    handle = box.hidden("b", 5, shared=True)
    assert drafts_of(box.draft("a", handle, 5))["ways"] == ["read_mapped"]


def test_another_sequence_gets_the_same_refusal_both_ways(box: Box) -> None:
    handle = box.hidden("a", 6)
    refusals = [box.draft("a", handle, 7, at=url) for url in (box.mapping, box.plain)]
    assert [answer.status_code for answer in refusals] == [422, 422]
    assert len({answer.json()["error"]["message"] for answer in refusals}) == 1


def test_a_handle_without_a_plane_gets_the_refusal_of_the_target(box: Box) -> None:
    body = {"token_ids": ids(8), "layers": [1], "return": "handle"}
    handle = httpx.post(f"{box.target}/hidden_states", json=body, headers=box.headers("a")).json()["handle"]
    refusals = [box.draft("a", handle, 8, at=url) for url in (box.mapping, box.plain)]
    assert [code_of(answer) for answer in refusals] == [(422, "layer_out_of_range")] * 2


def test_a_path_is_told_only_to_keys_that_may_draft_and_read(box: Box) -> None:
    handle = box.hidden("reader", 9, shared=True)
    assert code_of(box.file("reader", handle)) == (403, "role_required")
    assert code_of(box.file("blind", handle)) == (403, "role_required")
    for team in ("a", "boss"):
        answer = box.file(team, handle)
        assert answer.status_code == 200
        assert Path(answer.json()["path"]) in box.files()
    assert httpx.get(f"{box.target}/hidden_states/{handle}/file").status_code == 401


def test_a_path_is_not_told_over_the_network(box: Box) -> None:
    handle = box.hidden("a", 10)

    def asked_from(peer: str) -> httpx.Response:
        transport = httpx.ASGITransport(box.app, client=(peer, 1234))

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="http://target") as client:
                spoofed = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}
                return await client.get(f"/hidden_states/{handle}/file", headers=box.headers("a") | spoofed)

        return asyncio.run(ask())

    for peer in ("192.0.2.7", "10.0.0.5", "2001:db8::1"):
        answer = asked_from(peer)
        assert code_of(answer) == (409, "mode_cannot")
        assert str(box.folder) not in answer.text
    assert asked_from("127.0.0.1").status_code == 200


def test_a_file_that_was_removed_or_exchanged_is_read_over_http(box: Box) -> None:
    handle = box.hidden("a", 11)
    before = drafts_of(box.draft("a", handle, 11))
    assert before.pop("ways") == ["read_mapped"]
    path = Path(box.file("a", handle).json()["path"])
    other = Path(box.file("a", box.hidden("a", 12)).json()["path"])
    path.unlink()
    for fault in ("removed", "another's", "cut short"):
        if fault == "another's":
            path.write_bytes(other.read_bytes())
            path.chmod(0o600)
        if fault == "cut short":
            path.write_bytes(other.read_bytes()[:-1])
        now = drafts_of(box.draft("a", handle, 11))
        assert now.pop("ways") == ["read_http"], fault
        assert now == before, fault
    path.unlink()


def test_states_that_are_mapped_outlive_their_handle_and_file(box: Box) -> None:
    handle = box.hidden("a", 13)
    with Connection(box.target) as upstream:
        held = StatesSource(upstream).fetch(handle, box.card, ids(13), LENGTH, key=box.keys["a"])
        copy = held.states.copy()
        path = Path(box.file("a", handle).json()["path"])
        httpx.delete(f"{box.target}/hidden_states/{handle}", headers=box.headers("a"))
        assert held.way == "mapped"
        assert not path.exists()
        np.testing.assert_array_equal(held.states, copy)
    assert code_of(box.draft("a", handle, 13)) == (410, "handle_gone")


def test_states_evicted_under_the_reader_are_computed_again_by_the_client(
    target_engine: TorchEngine, engine: Engine, tmp_path: Path
) -> None:
    """The store holds one text; between a text's states and its drafts another client's states displace them."""
    one_text = len(drafters.TAPS) * LENGTH * drafters.HIDDEN * 4 + LENGTH * (4 + 3 * 8)
    settings = TargetSettings(
        serving=ServingSettings(limits=SMALL_LIMITS), store_bytes=one_text, store_dir=tmp_path / "states"
    )
    text = ids(20)
    reference = Reference(
        id="t",
        conversation="t",
        split="test",
        prompt_ids=text[:START],
        prompt_sha256=ids_sha256(text[:START]),
        response_ids=text[START:],
        finish_reason="length",
        stop_token_ids=[],
        max_new_tokens=LENGTH - START,
        source="file",
    )
    with running(create_target(target_engine, None, settings)) as target_url, Connection(target_url) as upstream:
        service = DrafterService(engine=engine, states=StatesSource(upstream), limits=SMALL_LIMITS, version="1")
        with running(create_drafter(service)) as url, Connection(url) as connection:
            target, drafter = TargetClient(upstream), DrafterClient(connection)
            plan = DraftPlan(top_k=3, dtype="float32", with_logits=False)
            (card,) = engine.cards()
            undisturbed = Draftsman(target, drafter, plan).open(reference, [card]).draft(card)
            job = Draftsman(target, drafter, plan).open(reference, [card])
            job.receipt()
            other = HiddenRequest(token_ids=ids(21), layers=list(drafters.TAPS), dtype="float32", return_="handle")
            upstream.post_json("/hidden_states", other, HiddenReceipt)
            drafts = job.draft(card)
    assert job.num_recomputed == 1
    assert "read_mapped" in drafts.facts["timing_ms"]
    np.testing.assert_array_equal(drafts.top_logprobs, undisturbed.top_logprobs)


def test_a_target_without_files_is_asked_again_only_after_a_while(target_engine: TorchEngine) -> None:
    now = [0.0]
    reader = MappedReader(clock=lambda: now[0])
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS))
    with running(create_target(target_engine, None, settings)) as url, Connection(url) as upstream:
        asked = HiddenRequest(token_ids=ids(1), layers=[1], return_="handle")
        handle = upstream.post_json("/hidden_states", asked, HiddenReceipt).handle

        def asks() -> int:
            lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if "{handle}/file" in line]
            return int(
                sum(float(line.split()[-1]) for line in lines if line.startswith("tauscope_target_requests_total"))
            )

        seen = []
        for second in (0.0, 1.0, ASK_AGAIN_S - 1, ASK_AGAIN_S + 1, ASK_AGAIN_S + 2):
            now[0] = second
            assert reader.read(upstream, handle, [1], 5, request_id=None) is None
            seen.append(asks())
    assert seen == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensor_over_mapped_states_is_no_copy(box: Box, dtype: str) -> None:
    body = {"token_ids": ids(30), "layers": list(drafters.TAPS), "return": "handle", "dtype": dtype}
    handle = httpx.post(f"{box.target}/hidden_states", json=body, headers=box.headers("a")).json()["handle"]
    with Connection(box.target) as upstream:
        found = StatesSource(upstream).fetch(handle, box.card, ids(30), 20, key=box.keys["a"])
    base: Any = found.states
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj, mmap.mmap)  # a memoryview of it
    assert to_torch(found.states).data_ptr() == found.states.ctypes.data


@pytest.mark.parametrize(
    ("url", "is_near"),
    [
        ("http://127.0.0.1:30010", True),
        ("https://localhost:30010", True),
        ("http://[::1]:30010", True),
        ("unix:///run/tauscope/target.sock", True),
        ("http://10.0.0.5:30010", False),
        ("http://box:30010", False),
        ("http://localhost.example.org", False),
    ],
)
def test_only_addresses_of_this_machine_are_asked_for_files(url: str, is_near: bool) -> None:
    assert is_on_this_machine(url) is is_near


def test_a_target_on_a_unix_socket_is_mapped_too(target_engine: TorchEngine, box: Box, tmp_path: Path) -> None:
    serving = ServingSettings(limits=SMALL_LIMITS, uds=tmp_path / "socket")
    settings = TargetSettings(serving=serving, store_dir=tmp_path / "states")
    with running(create_target(target_engine, None, settings), serving) as url, Connection(url) as upstream:
        asked = HiddenRequest(token_ids=ids(1), layers=list(drafters.TAPS), return_="handle")
        handle = upstream.post_json("/hidden_states", asked, HiddenReceipt).handle
        assert StatesSource(upstream).fetch(handle, box.card, ids(1), 20).way == "mapped"
