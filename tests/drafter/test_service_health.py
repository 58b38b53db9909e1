"""The drafter service when its device fails, and when it is told to stop."""

import asyncio
import threading
from pathlib import Path

import httpx
import msgpack
import pytest
import torch

from kit import drafters
from kit.serve import SMALL_LIMITS, running
from tauscope_drafter.app import MAX_CONSECUTIVE_FAILURES, DrafterService, create_app
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.contract import DraftJob, DraftResult
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import Place, open_place
from tauscope_drafter.states import StatesSource
from tauscope_wire.connection import Connection
from tauscope_wire.errors import InternalError, RequestError
from tauscope_wire.messages import DraftRequest, HiddenInline
from tauscope_wire.reader import read_draft
from tauscope_wire.tensors import DraftAnswer

STATES, IDS = drafters.random_sequence(30)
START = 12


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafters") / "good"
    return drafters.write_folder(folder, drafters.dflash_config(), drafters.dflash_tensors())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return open_place(torch.device("cpu"), torch.float32, drafters.write_target(tmp_path_factory.mktemp("target")))


def request(*, rows: int | None = None) -> DraftRequest:
    return DraftRequest(
        drafter="good",
        hidden=HiddenInline(inline=STATES[:, :rows].contiguous().numpy().tobytes(), dtype="float32"),
        token_ids=IDS.tolist(),
        response_start=START,
        top_k=1,
    )


def draft(service: Connection, *, rows: int | None = None) -> DraftAnswer:
    return service.post_tensors("/draft_block", request(rows=rows), read_draft)


class LosesDevice(Engine):
    """An engine whose device is gone while `is_lost`."""

    is_lost = False

    def draft_one(self, job: DraftJob) -> DraftResult:
        if self.is_lost:
            raise RuntimeError("the device is gone")
        return super().draft_one(job)


def test_failures_in_a_row_make_the_service_not_ready_until_a_draft_succeeds(good: Path, place: Place) -> None:
    engine = LosesDevice(place)
    engine.load("good", good, LoadOptions(), roots=None)
    app = create_app(DrafterService(engine=engine, states=StatesSource(None), limits=SMALL_LIMITS, version="1"))
    with running(app) as url, Connection(url) as service:
        engine.is_lost = True
        for count in range(MAX_CONSECUTIVE_FAILURES):
            assert len(app.state.not_ready()) == 0, count
            with pytest.raises(InternalError, match="the log of the service"):
                draft(service)
        assert app.state.not_ready() == ["the last 3 passes failed; see the log"]
        with pytest.raises(RequestError):
            draft(service, rows=1)
        assert app.state.not_ready()  # a refused request says nothing about the device
        engine.is_lost = False
        draft(service)
        assert not app.state.not_ready()


class Waits(Engine):
    """An engine whose passes wait until `gate` is set."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.entered, self.gate = threading.Event(), threading.Event()

    def draft_one(self, job: DraftJob) -> DraftResult:
        self.entered.set()
        assert self.gate.wait(drafters.GATE_TIMEOUT_S)
        return super().draft_one(job)


def test_a_service_that_stops_finishes_what_it_took_on_and_refuses_the_rest(good: Path, place: Place) -> None:
    waits = Waits(place)
    waits.load("good", good, LoadOptions(), roots=None)
    limits = SMALL_LIMITS.model_copy(update={"max_queued": 1})
    app = create_app(DrafterService(engine=waits, states=StatesSource(None), limits=limits, version="1"))
    body = msgpack.packb(request().model_dump(by_alias=True))

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/draft_block", content=body, headers={"Content-Type": "application/msgpack"})

    async def refusal(client: httpx.AsyncClient) -> str:
        answer = await ask(client)
        return str(answer.json()["error"]["code"])

    async def stop_while_busy() -> list[int]:
        lifespan = app.router.lifespan_context(app)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://drafter") as client:
            await lifespan.__aenter__()
            running_one = asyncio.create_task(ask(client))
            assert await asyncio.to_thread(waits.entered.wait, drafters.GATE_TIMEOUT_S)
            both = {asyncio.create_task(ask(client)) for _ in range(2)}  # one place in the queue: one of them gets it
            refused, (queued_one,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            assert [answer.result().json()["error"]["code"] for answer in refused] == ["queue_full"]
            stopping = asyncio.create_task(lifespan.__aexit__(None, None, None))
            while await refusal(client) != "draining":
                pass
            waits.gate.set()
            answers = [await running_one, await queued_one]
            await stopping
            return [answer.status_code for answer in answers]

    assert asyncio.run(stop_while_busy()) == [200, 200]
