"""Health, request ids, errors, logs and metrics of the common application, over real HTTP."""

import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from kit.echo import Echo
from kit.serve import running
from tauscope_serving.errors import STATUS, status_of
from tauscope_serving.logs import set_up_logs
from tauscope_wire import errors
from tauscope_wire.errors import TauscopeError

PROMPT = "the secret of the pharaoh"


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def client(echo: Echo) -> Iterator[httpx.Client]:
    with running(echo.app) as url, httpx.Client(base_url=url) as http:
        yield http


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers = []  # else those of pytest would be closed by `force`
    stream = io.StringIO()
    set_up_logs("info", stream=stream)
    yield stream
    root.handlers, root.level = before, level


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def all_error_classes() -> list[type[TauscopeError]]:
    """Those of the wire; other packages have subclasses of their own, which take the status of the nearest."""
    found = [getattr(errors, name) for name in errors.__all__]
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, TauscopeError)]


@pytest.mark.parametrize("kind", all_error_classes(), ids=lambda kind: kind.__name__)
def test_every_domain_error_answers_with_its_status_and_a_complete_body(
    echo: Echo, client: httpx.Client, kind: type[TauscopeError]
) -> None:
    echo.to_raise = kind("what was wrong", details={"bound": 3})
    answer = client.get("/raise", headers={"X-Request-Id": "run-7.prompt_2"})
    assert answer.status_code == status_of(echo.to_raise)
    assert answer.json() == {
        "error": {
            "code": kind.default_code.value,
            "message": "what was wrong",
            "request_id": "run-7.prompt_2",
            "details": {"bound": 3},
        }
    }
    assert ("retry-after" in answer.headers) == issubclass(kind, errors.RetryableError)
    assert ("www-authenticate" in answer.headers) == issubclass(kind, errors.AuthenticationError)


def test_every_error_class_that_a_service_can_raise_is_in_the_table() -> None:
    abstract = {TauscopeError, errors.RetryableError}
    assert set(all_error_classes()) - abstract == set(STATUS)


def test_retry_after_is_rounded_up_to_whole_seconds(echo: Echo, client: httpx.Client) -> None:
    echo.to_raise = errors.UnavailableError("full", retry_after_s=2.1)
    assert client.get("/raise").headers["retry-after"] == "3"


def test_a_defect_gives_a_nameless_500_and_its_log_line_holds_no_value_of_the_input(
    echo: Echo, client: httpx.Client, log_stream: io.StringIO
) -> None:
    echo.to_raise = KeyError(PROMPT)
    answer = client.get("/raise", headers={"X-Request-Id": "abc"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"] == "abc"
    assert "pharaoh" not in answer.text + log_stream.getvalue()
    failure = next(line for line in lines(log_stream) if line["message"] == "unexpected failure")
    assert failure["request_id"] == "abc"
    assert "kit/echo.py" in str(failure["exception"])
    assert "KeyError" in str(failure["exception"])


def test_a_device_error_keeps_its_message_in_the_log(echo: Echo, client: httpx.Client, log_stream: io.StringIO) -> None:
    echo.to_raise = RuntimeError("CUDA error: device lost")
    assert "device lost" not in client.get("/raise").text
    assert "CUDA error: device lost" in log_stream.getvalue()


def test_an_unknown_route_and_a_wrong_method_answer_with_the_error_body(client: httpx.Client) -> None:
    missing = client.get("/nowhere/../etc/passwd")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "route_unknown")
    wrong = client.put("/sum")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


def test_a_wrong_query_parameter_answers_with_the_error_body_and_names_the_field(client: httpx.Client) -> None:
    answer = client.get("/page", params={"start": "seven", "stop": 0})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "invalid_request"
    assert error["message"].startswith("query.start: ")
    assert "(and 1 more)" in error["message"]
    assert "seven" not in answer.text


@pytest.mark.parametrize("sent", ["", "a" * 65, "a b", 'a"b', "é", "../x"])
def test_a_request_id_that_could_forge_a_log_line_is_replaced(client: httpx.Client, sent: str) -> None:
    got = client.get("/healthz", headers={"X-Request-Id": sent.encode()}).headers["x-request-id"]
    assert got != sent
    assert len(got) == 16


def test_readiness_tells_the_reasons_and_health_only_that_the_process_answers(echo: Echo, client: httpx.Client) -> None:
    assert (client.get("/readyz").status_code, client.get("/readyz").json()["status"]) == (200, "ok")
    echo.not_ready.append("the compute loop is dead")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "not_ready", "reasons": ["the compute loop is dead"]}
    assert client.get("/healthz").json()["status"] == "ok"
    echo.not_ready.clear()


def test_one_log_line_per_request_with_facts_and_without_prompt_query_or_key(
    client: httpx.Client, log_stream: io.StringIO
) -> None:
    body = {"token_ids": [1, 2, 3], "text": PROMPT}
    secret = "tsk_not_a_key_but_secret"
    headers = {"X-Request-Id": "one", "Authorization": f"Bearer {secret}"}
    assert client.post("/sum", json=body, headers=headers).json()["total"] == 6
    assert client.post("/sum", params={"text": PROMPT}, json=body | {"text": PROMPT * 10}).status_code == 422
    records = [line for line in lines(log_stream) if line["logger"] == "tauscope.access"]
    assert len(records) == 2
    assert records[0] | {"ms": 0, "time": ""} == {
        "time": "",
        "level": "info",
        "logger": "tauscope.access",
        "message": "request",
        "request_id": "one",
        "method": "POST",
        "route": "/sum",
        "status": 200,
        "key": "local",
        "bytes": records[0]["bytes"],
        "ms": 0,
        "tokens": 3,
    }
    assert (records[1]["status"], records[1]["code"]) == (422, "invalid_request")
    assert "pharaoh" not in log_stream.getvalue()
    assert secret not in log_stream.getvalue()


def test_metrics_count_requests_by_route_not_by_path_and_errors_by_code() -> None:
    with running(Echo().app) as url, httpx.Client(base_url=url) as client:
        client.post("/sum", json={"token_ids": [1]})
        client.post("/sum", json={"token_ids": "x"})
        for index in range(3):
            client.get(f"/made-up/{index}")
        text = client.get("/metrics").text
    assert 'tauscope_echo_requests_total{key="local",route="/sum",status="200"} 1.0' in text
    assert 'tauscope_echo_requests_total{key="local",route="/sum",status="422"} 1.0' in text
    assert 'tauscope_echo_requests_total{key="",route="unknown",status="404"} 3.0' in text
    assert 'tauscope_echo_rejected_total{code="route_unknown"} 3.0' in text
    assert 'tauscope_echo_rejected_total{code="invalid_request"} 1.0' in text
    assert "tauscope_echo_requests_in_flight 1.0" in text  # the request for the metrics itself
    assert "made-up" not in text


def test_the_openapi_document_shows_the_bodies_that_routes_read(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    content = document["paths"]["/sum"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "application/msgpack"}
    assert "token_ids" in content["application/json"]["schema"]["properties"]
    assert "$ref" not in json.dumps(content)
