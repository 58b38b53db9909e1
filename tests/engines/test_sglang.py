"""A real SGLang on a CPU serves SmolLM2; our target service holds the same weights."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import httpx
import pytest

from engines.asks import turn_for
from engines.cutting_proxy import cutting_proxy
from engines.environments import ENVIRONMENTS, versions
from engines.margins import explain
from engines.prompts import PROMPTS, messages
from engines.servers import ENGINES, Server, serving
from tauscope_client.references.record import ids_sha256
from tauscope_client.references.retries import Retries
from tauscope_wire.errors import AuthenticationError, ErrorCode, RequestError
from tauscope_wire.messages import GenerateRequest, TokenizeRequest

pytestmark = pytest.mark.engines

QUICK = Retries(attempts=4, first_wait_s=0.05)


@pytest.fixture(scope="module")
def sglang() -> Iterator[Server]:
    with serving(ENGINES["sglang"]) as server:
        yield server


@pytest.fixture(scope="module")
def references(sglang, source_at, bridge):
    """Greedy answers of SGLang to every prompt, one at a time."""
    source = source_at(sglang)
    return {name: source.complete(turn_for(bridge, name, tail_tokens=8)) for name in PROMPTS}


def test_the_server_is_recognised_with_version_model_and_what_it_does(sglang, source_at):
    facts = source_at(sglang).facts()
    assert facts["kind"] == "sglang"
    assert facts["version"] == versions(ENVIRONMENTS["sglang"])["sglang"]
    assert facts["model"] == str(sglang.engine.model)
    assert facts["speculating"] is False and facts["deterministic"] is False
    assert facts["dtype"] == "float32" and facts["weight_version"]


def test_references_are_ids_that_end_as_asked(references, bridge):
    for name, completion in references.items():
        assert completion.drift == "" and completion.served is None
        if completion.finish_reason == "stop":
            assert completion.response_ids[-1] == 2, name
        else:
            assert len(completion.response_ids) == 96, name
        assert len(completion.tail_ids) == 8


def test_the_greedy_answers_repeat(references, source_at, sglang, bridge):
    """One at a time, with the prefix cache warm the second time."""
    source = source_at(sglang)
    again = {name: source.complete(turn_for(bridge, name)).response_ids for name in list(PROMPTS)[:3]}
    assert again == {name: references[name].response_ids for name in again}


def test_the_engines_tokens_are_our_argmax_or_near_ties(references, target, bridge, report):
    """Agreement of SGLang's greedy tokens with the target service's own argmax, on every response position."""
    found = explain(target, {name: (bridge.prompt_ids(name), done.response_ids) for name, done in references.items()})
    report("sglang-agreement", found.to_dict())
    assert found.num_positions > 300
    # Two float32 implementations differ by rounding only; a token can change hands only where two logits nearly tie.
    assert found.agreement > 0.995
    assert all(margin < 0.01 for margin in found.margins_of_disagreements)


def test_our_own_greedy_decoding_gives_the_same_text(references, target, bridge):
    for name in list(PROMPTS)[:4]:
        own = target.generate(GenerateRequest(token_ids=bridge.prompt_ids(name), max_new_tokens=96, deadline_s=600))
        assert own.token_ids == references[name].response_ids, name


def test_both_render_the_prompt_to_the_same_ids(sglang, target, bridge):
    for name in list(PROMPTS)[:3]:
        ours = target.tokenize(TokenizeRequest(messages=list(messages(name)))).token_ids
        body = {"model": "smollm2", "messages": [m.model_dump() for m in messages(name)], "max_tokens": 1}
        theirs = httpx.post(f"{sglang.url}/v1/chat/completions", json=body, timeout=60).json()
        assert theirs["usage"]["prompt_tokens"] == len(ours)
        assert ids_sha256(ours) == ids_sha256(bridge.prompt_ids(name))


def test_concurrent_references_are_reported(references, source_at, sglang, bridge, report):
    """Under load greedy text may change; how often is a number, not a failure, but most of it must stay."""
    source = source_at(sglang)
    found: dict[str, list[int]] = {}

    def ask(name):
        found[name] = source.complete(turn_for(bridge, name)).response_ids

    threads = [Thread(target=ask, args=(name,)) for name in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same = sum(found[name] == references[name].response_ids for name in PROMPTS)
    report("sglang-concurrency", {"prompts": len(PROMPTS), "same_text_at_concurrency_10": same})
    assert same >= len(PROMPTS) - 2


@pytest.mark.parametrize("keep_bytes", [0, 40, 400])
def test_a_connection_cut_half_way_is_asked_again(keep_bytes, source_at, references, sglang, bridge):
    with cutting_proxy(int(sglang.url.rsplit(":", 1)[1])) as proxy:
        source = source_at(sglang, url=proxy.url, retries=QUICK)
        proxy.cut_next(2, keep_bytes=keep_bytes)
        completion = source.complete(turn_for(bridge, "short-stop"))
        assert proxy.num_connections == 3
    assert completion.response_ids == references["short-stop"].response_ids


def test_a_prompt_over_the_context_is_one_clear_refusal(sglang, source_at, bridge):
    turn = turn_for(bridge, "fibonacci")
    long = replace(turn, prompt_ids=list(turn.prompt_ids) * 40)
    with pytest.raises(RequestError, match="1024") as caught:
        source_at(sglang, retries=QUICK).complete(long)
    assert caught.value.code is ErrorCode.PROMPT_TOO_LONG


def test_a_server_that_restarts_is_waited_for(references, source_at, bridge):
    """Killed in the middle of a run and started again on the same port: the client waits and goes on."""
    with serving(ENGINES["sglang"], label="first") as first:
        port = int(first.url.rsplit(":", 1)[1])
        source = source_at(first, retries=Retries(attempts=20))
        assert source.complete(turn_for(bridge, "short-stop")).response_ids == references["short-stop"].response_ids
    found = []
    waiting = Thread(target=lambda: found.append(source.complete(turn_for(bridge, "fibonacci"))))
    waiting.start()
    with serving(ENGINES["sglang"], port=port, label="second"):
        waiting.join(timeout=300)
    assert found and found[0].response_ids == references["fibonacci"].response_ids


def test_a_key_is_needed_where_the_server_has_one(bridge, source_at):
    with serving(ENGINES["sglang"], key="secret-of-the-test", label="keyed") as server:
        with pytest.raises(AuthenticationError, match="--reference-key"):
            source_at(server, retries=QUICK).complete(turn_for(bridge, "short-stop"))
        assert source_at(server, key="secret-of-the-test").complete(turn_for(bridge, "short-stop")).response_ids


def test_evaluation_end_to_end_with_references_from_sglang(references, sglang, target_url, tiny_run, report):
    """`tauscope eval` word for word: references from SGLang, states and drafts from our services."""
    results, frozen = tiny_run(f"sglang={sglang.url}")
    overall = results["drafters"]["small"]["overall"]
    assert overall["values"]["agreement"] > 0.995
    assert {line["id"]: line["response_ids"] for line in frozen} == {
        name: done.response_ids for name, done in references.items()
    }
    report("sglang-eval", {"values": overall["values"], "counts": overall["counts"]})
