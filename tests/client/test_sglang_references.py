"""References from SGLang's /generate: what is sent, what is made of the answer, and what a failure becomes."""

import pytest

from kit.engines import STOP_ID, TableModel, Talk, decode, encode, openai_app, sglang_app
from kit.serve import running
from tauscope_client.references import Turn
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.retries import Retries
from tauscope_client.references.sglang import SglangSource
from tauscope_wire.errors import (
    AuthenticationError,
    ErrorCode,
    MismatchError,
    RequestError,
    UnavailableError,
    UnreachableError,
)

PROMPT = encode("write something")


class TableBridge:
    """Text to ids and back, as the target service would do it."""

    def encode(self, text):
        return encode(text)

    def decode(self, ids):
        return decode(ids)


def turn(max_new_tokens=40, tail_tokens=0):
    return Turn(
        id="p", prompt_ids=PROMPT, max_new_tokens=max_new_tokens, tail_tokens=tail_tokens, stop_token_ids=[STOP_ID]
    )


@pytest.fixture
def waits():
    return []


@pytest.fixture
def source_at(waits):
    opened = []

    def make(url, *, key=None, attempts=4):
        retries = Retries(attempts=attempts, sleep=waits.append, jitter=lambda: 1.0)
        opened.append(EngineHttp(url, key=key, retries=retries))
        return SglangSource(opened[-1], TableBridge())

    yield make
    for http in opened:
        http.close()


def test_ids_go_in_and_come_out_with_every_sampling_field_explicit(source_at):
    model, talk = TableModel(), Talk()
    with running(sglang_app(model, talk)) as url:
        completion = source_at(url).complete(turn())
    assert completion.response_ids == model.generate(PROMPT, 40)
    assert completion.drift == "" and completion.served is None
    (body,) = talk.bodies
    assert body["input_ids"] == PROMPT
    assert body["sampling_params"] == {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "max_new_tokens": 40,
        "n": 1,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "stop_token_ids": [STOP_ID],
    }


def test_the_finish_reason_tells_a_stop_id_from_the_limit(source_at):
    with running(sglang_app(TableModel(stop_share=0.4), Talk())) as url:
        stopped = source_at(url).complete(turn(max_new_tokens=200))
    with running(sglang_app(TableModel(stop_share=0.0), Talk())) as url:
        cut = source_at(url).complete(turn(max_new_tokens=1))
    assert (stopped.finish_reason, stopped.response_ids[-1]) == ("stop", STOP_ID)
    assert (cut.finish_reason, len(cut.response_ids)) == ("length", 1)


def test_a_trimmed_stop_id_is_put_back(source_at):
    model = TableModel(stop_share=0.4)
    with running(sglang_app(model, Talk(), trims_stop=True)) as url:
        completion = source_at(url).complete(turn(max_new_tokens=200))
    assert completion.response_ids == model.generate(PROMPT, 200)


def test_the_tail_goes_on_where_the_answer_ended_and_ignores_stops(source_at):
    model, talk = TableModel(stop_share=0.4), Talk()
    with running(sglang_app(model, talk)) as url:
        completion = source_at(url).complete(turn(max_new_tokens=200, tail_tokens=12))
    whole = model.generate(PROMPT, len(completion.response_ids) + 12, stop_ids=())
    assert [*completion.response_ids, *completion.tail_ids] == whole
    assert talk.bodies[1]["sampling_params"]["ignore_eos"] is True
    assert "stop_token_ids" not in talk.bodies[1]["sampling_params"]


def test_speculation_counters_are_kept(source_at):
    with running(sglang_app(TableModel(), Talk(), speculative=True)) as url:
        source = source_at(url)
        completion = source.complete(turn())
        assert source.facts()["speculating"] is True
    assert completion.served.completion_tokens == len(completion.response_ids)
    assert completion.served.histogram == [0, completion.served.verify_steps]


def test_an_old_server_without_ids_is_read_by_a_round_trip(source_at):
    model = TableModel()
    with running(sglang_app(model, Talk(), returns_ids=False)) as url:
        completion = source_at(url).complete(turn())
    assert completion.response_ids == model.generate(PROMPT, 40)
    assert completion.drift == ""


def test_server_facts_kept_for_administrators_do_not_stop_the_run(source_at):
    with running(sglang_app(TableModel(), Talk(), admin_only=True)) as url:
        facts = source_at(url).facts()
    assert facts["model"] == "table-model" and facts["weight_version"] == "7"
    assert facts["deterministic"] is None and "version" not in facts


@pytest.mark.parametrize("fault", [503, 500, "cut", (429, {"error": {"message": "slow down"}}, {"Retry-After": "7"})])
def test_failures_that_pass_are_tried_again_with_growing_waits(fault, waits, source_at):
    model, talk = TableModel(), Talk()
    talk.faults.extend([fault, fault])
    with running(sglang_app(model, talk)) as url:
        completion = source_at(url).complete(turn())
    assert completion.response_ids == model.generate(PROMPT, 40)
    assert waits == ([7.0, 7.0] if isinstance(fault, tuple) else [0.5, 1.0])


def test_a_failure_that_stays_is_raised_after_the_last_attempt(waits, source_at):
    talk = Talk()
    talk.faults.extend([503] * 9)
    with running(sglang_app(TableModel(), talk)) as url, pytest.raises(UnavailableError, match="503: as planned"):
        source_at(url, attempts=3).complete(turn())
    assert len(waits) == 2


def test_a_prompt_over_the_context_is_refused_without_a_retry(waits, source_at):
    with running(sglang_app(TableModel(), Talk(), context_length=4)) as url, pytest.raises(RequestError) as caught:
        source_at(url).complete(turn())
    assert caught.value.code is ErrorCode.PROMPT_TOO_LONG
    assert "context length (4 tokens)" in caught.value.message
    assert waits == []


def test_a_missing_key_says_which_option_gives_it(source_at):
    with running(sglang_app(TableModel(), Talk(), key="secret")) as url:
        assert source_at(url, key="secret").complete(turn()).response_ids
        with pytest.raises(AuthenticationError, match="--reference-key"):
            source_at(url).complete(turn())


def test_another_kind_of_server_is_named_as_such(source_at):
    with running(openai_app(TableModel(), Talk())) as url, pytest.raises(MismatchError, match="is not SGLang"):
        source_at(url).facts()


def test_nobody_at_the_address_is_one_line(source_at):
    source = source_at("http://127.0.0.1:9", attempts=1)
    with pytest.raises(UnreachableError, match=r"no reference server answers at http://127\.0\.0\.1:9"):
        source.facts()
    with pytest.raises(RequestError, match="expected an address like"):
        EngineHttp("127.0.0.1:30000")
