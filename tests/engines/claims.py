"""What is claimed of every engine, and of those that give ids: test classes that the engines' own modules inherit.

A module names its engine (`ENGINE`), the prompts whose references it keeps (`NAMES`), and may say less or more.
"""

import time
from threading import Thread

import httpx
import pytest

from engines.asks import turn_for
from engines.cutting_proxy import cutting_proxy
from engines.gateway import gateway
from engines.margins import explain
from engines.processes import free_port
from engines.prompts import messages
from engines.servers import ENGINES, serving
from tauscope_client.references.retries import Retries
from tauscope_wire.errors import AuthenticationError, DeadlineError, ErrorCode, MismatchError, RequestError
from tauscope_wire.messages import TokenizeRequest

__all__ = ["PATIENT", "QUICK", "AnyEngine", "IdsEngine", "all_at_once", "port_of"]

STOP_ID = 2
QUICK = Retries(attempts=4, first_wait_s=0.05)
PATIENT = Retries(attempts=40, longest_wait_s=15.0)
"""Ten minutes in all: an engine starts in one on quiet cores, in several beside other work."""
SECRET = "secret-of-the-test"


def port_of(server):
    """Its port."""
    return int(server.url.rsplit(":", 1)[1])


def all_at_once(source, turns):
    """Complete every turn in a thread of its own; what was answered, by name."""
    found = {}

    def ask(turn):
        found[turn.id] = source.complete(turn)

    threads = [Thread(target=ask, args=(turn,)) for turn in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Waits:
    """Waits as the client does, and keeps for how long."""

    def __init__(self):
        self.seconds = []

    def __call__(self, seconds):
        self.seconds.append(seconds)
        time.sleep(seconds)


class AnyEngine:
    """Holds for a server that gives text only, too.

    Attributes:
        REPEATS: whether greedy text is the same each time; if not, an answer only has to be a whole one.
    """

    REPEATS = True

    def check_same(self, completion, reference):
        """It is the answer, where the engine has only one; a whole one in any case, not what was left of a cut one."""
        assert completion.finish_reason in ("stop", "length") and completion.response_ids
        assert completion.drift == reference.drift
        assert not self.REPEATS or completion.response_ids == reference.response_ids

    def test_references_end_as_asked(self, references):
        for name, completion in references.items():
            if completion.finish_reason == "stop":
                assert completion.response_ids[-1] == STOP_ID, name
                assert STOP_ID not in completion.response_ids[:-1], name
            else:
                assert completion.finish_reason == "length", name
                assert len(completion.response_ids) == 96 or completion.drift, name

    def test_a_first_look_that_is_cut_or_refused_is_taken_again(self, server, source_at):
        """The facts are asked for by GET, before anything else; nothing there may end a run that could go on."""
        with cutting_proxy(port_of(server)) as proxy:
            proxy.cut_next(2, keep_bytes=0)
            facts = source_at(server, url=proxy.url, retries=QUICK).facts()
            assert proxy.num_connections >= 3
        assert facts["kind"] == source_at(server).facts()["kind"]

    @pytest.mark.parametrize("keep_bytes", [0, 40, 400])
    def test_a_connection_cut_half_way_is_asked_again(self, keep_bytes, server, source_at, references, bridge):
        with cutting_proxy(port_of(server)) as proxy:
            source = source_at(server, url=proxy.url, retries=QUICK)
            turn = turn_for(bridge, "short-stop")
            source.complete(turn)  # facts and dialect are known from here on
            before = proxy.num_connections
            proxy.cut_next(2, keep_bytes=keep_bytes)
            completion = source.complete(turn)
            assert proxy.num_connections == before + 3
        self.check_same(completion, references["short-stop"])

    def test_a_limit_on_requests_is_waited_for_as_long_as_it_says(self, server, source_at, references, bridge):
        """429 with Retry-After, met while looking at the server first and while asking for completions."""
        waits = Waits()
        retries = Retries(attempts=40, first_wait_s=0.05, sleep=waits)
        with gateway(port_of(server), limit=1, window_s=1.5) as door:
            source = source_at(server, url=door.url, retries=retries)
            source.facts()
            completion = source.complete(turn_for(bridge, "short-stop"))
        self.check_same(completion, references["short-stop"])
        assert door.statuses[429] == len(waits.seconds) >= 1
        assert min(waits.seconds) >= 1.0  # whole seconds of the header, not the client's own twentieth of one

    def test_an_answer_that_takes_too_long_is_one_clear_error_and_nothing_else(
        self, server, source_at, references, bridge
    ):
        with pytest.raises(DeadlineError, match="no answer in time"):
            source_at(server, retries=QUICK, read_timeout_s=0.2).complete(turn_for(bridge, "fibonacci"))
        again = source_at(server).complete(turn_for(bridge, "short-stop"))
        self.check_same(again, references["short-stop"])

    def test_a_prompt_over_the_context_is_one_clear_refusal(self, server, source_at, bridge):
        with pytest.raises(RequestError, match="1024") as caught:
            source_at(server, retries=QUICK).complete(turn_for(bridge, "fibonacci", repeat=130))
        assert caught.value.code is ErrorCode.PROMPT_TOO_LONG

    def test_a_model_that_it_does_not_serve_is_told_before_anything_is_asked(self, server, source_at):
        with pytest.raises(MismatchError, match="does not serve 'no-such-model'; it serves "):
            source_at(server, model="no-such-model").facts()

    def test_concurrent_references_are_reported(self, references, source_at, server, bridge, report):
        """Under load greedy text may change; how often is a number, not a failure, but most of it must stay."""
        with gateway(port_of(server)) as door:
            source = source_at(server, url=door.url, retries=PATIENT)
            found = all_at_once(source, [turn_for(bridge, name, max_new_tokens=32) for name in references])
        same = sum(found[name].response_ids == references[name].response_ids[:32] for name in references)
        numbers = {"at_once": len(references), "same_text": same, "statuses": dict(door.statuses)}
        report(f"{server.engine.name}-concurrency", numbers)
        assert len(found) == len(references)
        assert same >= len(references) - 2 or not self.REPEATS

    def test_a_restart_in_the_middle_of_a_run_is_waited_for(self, request, server, source_at, references, bridge):
        """Seen through a gateway (an answer, then 502 until the next server is up), and directly (refused until then).

        The server that comes up has a key where it can have one: without it nothing is asked twice.
        """
        engine = ENGINES[request.module.ENGINE]
        key = SECRET if engine.key_option else None
        port = free_port()
        turn = turn_for(bridge, "short-stop")
        with gateway(port_of(server)) as door:
            through = source_at(server, url=door.url, key=key, retries=PATIENT)
            direct = source_at(server, url=f"http://127.0.0.1:{port}", key=key, retries=PATIENT)
            found = [through.complete(turn)]
            door.port = port
            waiting = [
                Thread(target=lambda source=source: found.append(source.complete(turn))) for source in (through, direct)
            ]
            for thread in waiting:
                thread.start()
            with serving(engine, port=port, key=key, label="restarted") as restarted:
                for thread in waiting:
                    thread.join(timeout=600)
                if key is not None:
                    with pytest.raises(AuthenticationError, match="--reference-key"):
                        source_at(restarted, retries=QUICK).complete(turn)
        assert len(found) == 3
        for completion in found:
            self.check_same(completion, references["short-stop"])
        assert door.statuses[502] >= 1


class IdsEngine(AnyEngine):
    """Holds for servers that take and give token ids, in float32 on the weights of our target service."""

    def test_references_come_as_ids_with_the_tail_that_was_asked_for(self, references):
        for completion in references.values():
            assert completion.drift == "" and completion.served is None
            assert len(completion.tail_ids) == 8

    def test_the_greedy_answers_repeat(self, references, source_at, server, bridge):
        """One at a time, with the prefix cache warm the second time."""
        source = source_at(server)
        for name in list(references)[:3]:
            again = source.complete(turn_for(bridge, name, max_new_tokens=48)).response_ids
            assert again == references[name].response_ids[:48], name

    def test_the_engines_tokens_are_our_argmax_or_near_ties(self, references, server, target, bridge, report):
        """Agreement of its greedy tokens with the target service's own argmax, on every response position."""
        texts = {name: (bridge.prompt_ids(name), done.response_ids) for name, done in references.items()}
        found = explain(target, texts)
        report(f"{server.engine.name}-agreement", found.to_dict())
        assert found.num_positions > 250
        # Two float32 implementations differ by rounding only; a token changes hands only where two logits nearly tie.
        assert found.agreement > 0.995
        assert all(margin < 0.01 for margin in found.margins_of_disagreements)

    @pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
    def test_template_options_render_to_the_same_ids_on_both_sides(self, kwargs, server, target, bridge):
        ours = target.tokenize(TokenizeRequest(messages=list(messages("short-stop")), template_kwargs=kwargs)).token_ids
        body = {
            "model": server.model_name,
            "messages": [message.model_dump() for message in messages("short-stop")],
            "max_tokens": 1,
            "return_token_ids": True,
            "chat_template_kwargs": kwargs,
        }
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600).json()
        seen = answer["choices"][0].get("prompt_token_ids", answer.get("prompt_token_ids"))
        assert seen == ours == bridge.prompt_ids("short-stop", **kwargs)
        assert (ours == bridge.prompt_ids("short-stop")) is (kwargs.get("enable_thinking") is not False)

    def test_answers_without_thinking_are_those_to_the_prompt_that_says_so(self, server, source_at, target, bridge):
        turn = turn_for(bridge, "short-stop", max_new_tokens=24, template_kwargs={"enable_thinking": False})
        done = source_at(server).complete(turn)
        found = explain(target, {"short-stop": (list(turn.prompt_ids), done.response_ids)})
        assert done.drift == "" and found.agreement == 1.0
