"""The first look at an inference server: failures that pass are waited out, what the server is gets known."""

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from kit.engines import STOP_ID, TableModel, Talk, decode, encode, openai_app, sglang_app
from kit.serve import running
from tauscope_client.references import Turn
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.retries import Retries
from tauscope_client.references.sglang import SglangSource
from tauscope_wire.errors import MismatchError, QuotaError, UnavailableError, UnreachableError
from tauscope_wire.messages import Message

MESSAGES = (Message(role="user", content="write something"),)


class TableBridge:
    def encode(self, text):
        return encode(text)

    def decode(self, ids):
        return decode(ids)


class Failing(httpx.BaseTransport):
    """A line to a real server that fails the first requests: an error of httpx to raise, or an answer to give."""

    def __init__(self, *failures):
        self._failures = list(failures)
        self._line = httpx.HTTPTransport()
        self.paths = []

    def handle_request(self, request):
        self.paths.append(request.url.path)
        if not self._failures:
            return self._line.handle_request(request)
        failure = self._failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return failure

    def close(self):
        self._line.close()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def http_to(waits):
    opened = []

    def make(url, *failures, attempts=4):
        retries = Retries(attempts=attempts, sleep=waits.append, jitter=lambda: 1.0)
        opened.append(EngineHttp(url, transport=Failing(*failures), retries=retries))
        return opened[-1]

    yield make
    for http in opened:
        http.close()


@pytest.mark.parametrize("kind", [SglangSource, OpenAISource])
@pytest.mark.parametrize(
    "failure",
    [
        lambda: httpx.ConnectError("refused"),
        lambda: httpx.RemoteProtocolError("cut"),
        lambda: httpx.ReadTimeout("slow"),
        lambda: httpx.Response(502),
        lambda: httpx.Response(503),
    ],
)
def test_failures_that_pass_are_tried_again_with_growing_waits(kind, failure, waits, http_to):
    app = (sglang_app if kind is SglangSource else openai_app)(TableModel(), Talk())
    with running(app) as url:
        facts = kind(http_to(url, failure(), failure()), TableBridge()).facts()
    assert facts["model"] == "table-model"
    assert waits == [0.5, 1.0]


def test_a_limit_is_waited_for_as_long_as_it_says(waits, http_to):
    limited = httpx.Response(429, headers={"Retry-After": "7"}, json={"error": {"message": "slow down"}})
    with running(openai_app(TableModel(), Talk())) as url:
        assert OpenAISource(http_to(url, limited), TableBridge()).facts()["version"] == "0.32.0"
    assert waits == [7.0]


def test_a_failure_that_stays_is_raised_after_the_last_attempt(waits, http_to):
    with pytest.raises(QuotaError, match="429: slow down"):
        OpenAISource(
            http_to(
                "http://127.0.0.1:9",
                *[httpx.Response(429, json={"message": "slow down"}) for _ in range(3)],
                attempts=3,
            ),
            TableBridge(),
        ).facts()
    with pytest.raises(UnreachableError):
        SglangSource(http_to("http://127.0.0.1:9", attempts=2), TableBridge()).facts()
    assert len(waits) == 3


def test_a_description_that_the_server_cannot_make_is_not_waited_for(waits, http_to):
    """`/version` answers 500 here, and would again: what it says is missing, and that is all."""
    app = openai_app(TableModel(), Talk(), owned_by="someone")

    @app.get("/version")
    def version() -> Response:
        return JSONResponse({"detail": "broken"}, status_code=500)

    with running(app) as url:
        facts = OpenAISource(http_to(url), TableBridge()).facts()
    assert "version" not in facts and waits == []


def test_sglang_is_held_to_the_model_that_was_named(http_to):
    with running(sglang_app(TableModel(), Talk())) as url:
        assert SglangSource(http_to(url), TableBridge(), model="table-model").facts()["model"] == "table-model"
        with pytest.raises(MismatchError, match="does not serve 'other'; it serves table-model"):
            SglangSource(http_to(url), TableBridge(), model="other").facts()


def test_template_options_go_alone_to_a_server_that_refuses_the_others(http_to):
    """As `transformers serve` does: 422 for every field it does not know, and the options of the template it knows."""
    seen = []
    app = FastAPI()
    known = {"model", "messages", "max_tokens", "temperature", "top_p", "n", "stream", "chat_template_kwargs"}
    known |= {"frequency_penalty", "presence_penalty"}

    @app.get("/v1/models")
    def models():
        return {"data": [{"id": "m@main", "owned_by": "local", "status": {"value": "loaded"}}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        if set(body) - known:
            return JSONResponse({"error": {"message": f"unexpected: {sorted(set(body) - known)}"}}, status_code=422)
        seen.append(body)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    turn = Turn(
        id="p",
        prompt_ids=[1, 2, 3],
        messages=MESSAGES,
        template_kwargs={"enable_thinking": False},
        max_new_tokens=9,
        stop_token_ids=[STOP_ID],
    )
    with running(app) as url:
        source = OpenAISource(http_to(url), TableBridge())
        completion = source.complete(turn)
    assert (source.facts()["dialect"], source.facts()["revision"]) == ("chat+template", "main")
    assert seen[-1]["chat_template_kwargs"] == {"enable_thinking": False}
    assert completion.drift == ""


def test_a_500_that_stays_is_a_refusal_of_the_form_and_not_the_end(http_to, waits):
    """Met on a real llama-cpp-python, which answers 500 to ids: the next dialect is tried."""
    app = openai_app(TableModel(stop_share=0.0), Talk(), takes_ids=False, takes_options=False)

    @app.middleware("http")
    async def break_on_ids(request: Request, call_next) -> Response:
        if request.url.path == "/v1/completions":
            return JSONResponse({"error": {"message": "[{'type': 'string_type', 'input': 5}]"}}, status_code=500)
        return await call_next(request)

    turn = Turn(id="p", prompt_ids=[1, 2], messages=MESSAGES, max_new_tokens=4, stop_token_ids=[STOP_ID])
    with running(app) as url:
        source = OpenAISource(http_to(url, attempts=2), TableBridge())
        source.complete(turn)
    assert source.facts()["dialect"] == "chat"
    assert len(waits) == 2  # one for each form with ids


def test_another_failure_of_the_server_while_the_dialect_is_sought_ends_the_search(http_to):
    talk = Talk()
    talk.faults.extend([503] * 4)
    turn = Turn(id="p", prompt_ids=[1, 2], messages=MESSAGES, max_new_tokens=4, stop_token_ids=[STOP_ID])
    with running(openai_app(TableModel(), talk)) as url, pytest.raises(UnavailableError, match="503"):
        OpenAISource(http_to(url, attempts=2), TableBridge()).complete(turn)


def test_llama_cpp_python_is_known_by_its_description_and_told_not_to_penalise_repetitions(http_to):
    """`owned_by: me`, no `/version`; its penalty is 1.1 unless it is told otherwise, and it refuses a top_k of -1."""
    talk = Talk()
    app = openai_app(TableModel(), talk, owned_by="me", takes_ids=False)
    app.title, app.version = "🦙 llama.cpp Python API", "0.3.36"
    turn = Turn(id="p", prompt_ids=[1, 2], messages=MESSAGES, max_new_tokens=4, stop_token_ids=[STOP_ID])
    with running(app) as url:
        source = OpenAISource(http_to(url), TableBridge())
        source.complete(turn)
    facts = source.facts()
    assert (facts["kind"], facts["version"], facts["dialect"]) == ("llama-cpp-python", "0.3.36", "chat+options")
    assert all("prompt" not in body for body in talk.bodies)
    assert {name: talk.bodies[-1][name] for name in ("top_k", "min_p", "repeat_penalty")} == {
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
    }
