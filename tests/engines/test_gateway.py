"""The gateway before the engines: limits, an absent server, and what passes through; fast, no engine."""

import httpx

from engines.gateway import gateway
from engines.processes import free_port
from kit.engines import TableModel, Talk, encode, sglang_app
from kit.serve import running

BODY = {"input_ids": encode("write"), "sampling_params": {"max_new_tokens": 4}}


def test_the_server_answers_through_it_and_its_own_refusals_pass():
    model, talk = TableModel(stop_share=0.0), Talk()
    with running(sglang_app(model, talk)) as url, gateway(int(url.rsplit(":", 1)[1])) as door:
        answer = httpx.post(f"{door.url}/generate", json=BODY)
        assert answer.json()["output_ids"] == model.generate(encode("write"), 4)
        talk.faults.append(503)
        assert httpx.post(f"{door.url}/generate", json=BODY).status_code == 503
        assert dict(door.statuses) == {200: 1, 503: 1}


def test_more_than_the_limit_is_refused_with_a_time():
    with (
        running(sglang_app(TableModel(), Talk())) as url,
        gateway(int(url.rsplit(":", 1)[1]), limit=1, window_s=60) as door,
    ):
        assert httpx.get(f"{door.url}/get_model_info").status_code == 200
        refused = httpx.get(f"{door.url}/get_model_info")
    assert refused.status_code == 429 and 50 < int(refused.headers["retry-after"]) <= 60


def test_an_absent_server_is_a_bad_gateway():
    with gateway(free_port()) as door:
        assert httpx.get(f"{door.url}/get_model_info").status_code == 502
