"""Whether a server repeats itself: asked cold and warm, and told which of the two came back otherwise."""

from contextlib import closing

import pytest

from kit.engines import STOP_ID, TableModel, Talk, openai_app, sglang_app
from kit.serve import running
from tauscope_client.progress import SilentProgress
from tauscope_client.prompts import PromptRecord
from tauscope_client.references.engine_http import EngineHttp
from tauscope_client.references.openai import OpenAISource
from tauscope_client.references.record import Reference, ids_sha256
from tauscope_client.references.sglang import SglangSource
from tauscope_client.references.source import Completion
from tauscope_client.references.stability import Stability, check_stability


def reference(name, prompt_ids, response_ids):
    return Reference(
        id=name,
        conversation=name,
        split="fresh",
        prompt_ids=prompt_ids,
        prompt_sha256=ids_sha256(prompt_ids),
        response_ids=response_ids,
        finish_reason="length",
        stop_token_ids=[STOP_ID],
        max_new_tokens=len(response_ids),
        source="sglang",
    )


class CachedServer:
    """Answers otherwise when the prompt stands in its cache, as some hybrid models do."""

    name = "cached"

    def __init__(self, *, can_flush=True):
        self.cache = set()
        self.can_flush = can_flush

    def facts(self):
        return {}

    def complete(self, turn):
        is_warm = tuple(turn.prompt_ids) in self.cache
        self.cache.add(tuple(turn.prompt_ids))
        ids = [7, 8, 9 if is_warm and turn.id == "b" else 5]
        return Completion(response_ids=ids, finish_reason="length", cached_tokens=len(turn.prompt_ids) * is_warm)

    def flush_cache(self):
        if self.can_flush:
            self.cache.clear()
        return self.can_flush


REFERENCES = [reference(name, [1, 2, at], [7, 8, 5]) for at, name in enumerate("abcd")]
RECORDS = [PromptRecord(id=name, split="fresh", text=name) for name in "abcd"]


def check(source, num=4, *, may_flush):
    return check_stability(REFERENCES, RECORDS, source, num_asked=num, progress=SilentProgress(), may_flush=may_flush)


def test_an_answer_that_only_the_cache_changes_is_told_as_warm():
    found = check(CachedServer(), may_flush=True)
    assert [(one.id, one.position, one.asked) for one in found.unrepeated] == [("b", 2, "warm")]
    assert found.is_flushed and found.cached_tokens == {"cold": 0, "warm": 12}
    caution = found.caution()
    assert (
        "4 answers were asked for twice more (cold, its cache emptied before, 0 prompt tokens from its cache" in caution
    )
    assert "1 otherwise warm" in caution and "'b' from token 2 on" in caution
    assert Stability.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(("can_flush", "may_flush"), [(True, False), (False, True)])
def test_without_a_flush_the_answer_of_the_run_is_the_cold_one_and_it_is_said(can_flush, may_flush):
    found = check(CachedServer(can_flush=can_flush), may_flush=may_flush)
    assert not found.is_flushed and list(found.cached_tokens) == ["again", "warm"]
    assert "again, after the answers of the run" in found.words


def test_a_server_that_repeats_itself_gets_no_caution():
    found = check(CachedServer(), 1, may_flush=True)
    assert found.num_asked == 1 and found.caution() is None
    assert found.words.endswith("all came back the same")


def test_sglang_is_flushed_before_each_cold_answer_and_others_only_if_they_can():
    model, talk = TableModel(), Talk()
    answered = [reference(one.id, one.prompt_ids, model.generate(one.prompt_ids, 3)) for one in REFERENCES]
    with running(sglang_app(model, talk)) as url, closing(EngineHttp(url)) as http:
        found = check_stability(
            answered, RECORDS, SglangSource(http, None), num_asked=2, progress=SilentProgress(), may_flush=True
        )
    assert (talk.flushed, len(talk.bodies)) == (2, 4)
    assert found.unrepeated == () and found.cached_tokens == {"cold": 0, "warm": 0}
    with running(openai_app(model, Talk())) as url, closing(EngineHttp(url)) as http:
        found = check_stability(
            answered, RECORDS, OpenAISource(http, None), num_asked=2, progress=SilentProgress(), may_flush=True
        )
    assert not found.is_flushed and found.cached_tokens == {"again": None, "warm": None}
