"""References from OpenAI-compatible servers of several kinds: ids where they give them, checked text where not."""

import pytest

from kit.engines import STOP_ID, TableModel, Talk, decode, encode, openai_app, render
from kit.serve import running
from tauscope_client.references import Turn
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.retries import Retries
from tauscope_wire.errors import MismatchError
from tauscope_wire.messages import Message

MESSAGES = (Message(role="user", content="write something"),)
PROMPT = encode(render([m.model_dump() for m in MESSAGES]))


class TableBridge:
    def encode(self, text):
        return encode(text)

    def decode(self, ids):
        return decode(ids)


def turn(prompt_ids=PROMPT, *, max_new_tokens=40, tail_tokens=0, messages=MESSAGES, text=None):
    return Turn(
        id="p",
        prompt_ids=prompt_ids,
        messages=messages,
        text=text,
        template_kwargs={"enable_thinking": False},
        max_new_tokens=max_new_tokens,
        tail_tokens=tail_tokens,
        stop_token_ids=[STOP_ID],
    )


@pytest.fixture
def source_at():
    opened = []

    def make(url, *, model=None):
        opened.append(EngineHttp(url, retries=Retries(attempts=2, sleep=lambda _: None)))
        return OpenAISource(opened[-1], TableBridge(), model=model)

    yield make
    for http in opened:
        http.close()


def test_vllm_takes_and_returns_ids_with_every_sampling_field_explicit(source_at):
    model, talk = TableModel(stop_share=0.0), Talk()
    with running(openai_app(model, talk)) as url:
        source = source_at(f"{url}/v1")
        completion = source.complete(turn(tail_tokens=8))
        facts = source.facts()
    assert completion.response_ids == model.generate(PROMPT, 40)
    assert [*completion.response_ids, *completion.tail_ids] == model.generate(PROMPT, 48)
    assert (completion.finish_reason, completion.drift) == ("length", "")
    assert (facts["kind"], facts["version"], facts["dialect"]) == ("vllm", "0.32.0", "ids+options")
    assert facts["returns_ids"] is True
    sent = talk.bodies[1]
    for field in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
    ):
        assert field in sent
    assert sent["prompt"] == PROMPT and sent["return_token_ids"] is True and sent["stop_token_ids"] == [STOP_ID]


def test_a_server_with_chat_only_is_read_by_a_round_trip(source_at):
    model, talk = TableModel(stop_share=0.4), Talk()
    app = openai_app(model, talk, owned_by="transformers", takes_ids=False, takes_options=False)
    with running(app) as url:
        source = source_at(url)
        completion = source.complete(turn(max_new_tokens=200))
    assert source.facts()["dialect"] == "chat" and source.facts()["returns_ids"] is False
    assert completion.response_ids == model.generate(PROMPT, 200)  # the stop id, which text does not show, is back
    assert (completion.finish_reason, completion.drift, completion.tail_ids) == ("stop", "", [])
    assert talk.bodies[-1]["messages"] == [{"role": "user", "content": "write something"}]


def test_text_that_does_not_round_trip_is_marked_as_drifted(source_at):
    app = openai_app(TableModel(), Talk(), takes_ids=False, takes_options=False, suffix="é")
    with running(app) as url:
        completion = source_at(url).complete(turn())
    assert "does not round-trip" in completion.drift


def test_a_prompt_that_the_server_renders_otherwise_is_marked_as_drifted(source_at):
    other = [*PROMPT, 65]
    with running(openai_app(TableModel(), Talk(), takes_ids=False)) as url:
        completion = source_at(url).complete(turn(other))
        assert "rendered the prompt to other ids" in completion.drift
    with running(openai_app(TableModel(), Talk(), takes_ids=False, takes_options=False)) as url:
        completion = source_at(url).complete(turn(other))
    assert f"counted {len(PROMPT)} prompt tokens, the target service {len(other)}" in completion.drift


def test_template_options_go_to_servers_that_take_them(source_at):
    talk = Talk()
    with running(openai_app(TableModel(), talk, takes_ids=False)) as url:
        source = source_at(url)
        source.complete(turn())
    assert source.facts()["dialect"] == "chat+options"
    assert talk.bodies[-1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_raw_text_goes_to_the_completions_route_of_a_server_without_ids(source_at):
    model, talk = TableModel(), Talk()
    ids = encode("def f")
    with running(openai_app(model, talk, takes_ids=False, takes_options=False)) as url:
        completion = source_at(url).complete(turn(ids, messages=None, text="def f"))
    assert completion.response_ids == model.generate(ids, 40)
    assert talk.bodies[-1]["prompt"] == "def f"


def test_several_models_need_a_choice_and_a_wrong_name_is_told(source_at):
    with running(openai_app(TableModel(), Talk(), names=("a", "b"))) as url:
        with pytest.raises(MismatchError, match=r"serves 2 models \(a, b\): say which with --reference-model"):
            source_at(url).facts()
        with pytest.raises(MismatchError, match="does not serve 'c'; it serves a, b"):
            source_at(url, model="c").facts()
        assert source_at(url, model="b").facts()["model"] == "b"
