"""Both services under generated requests: no defect, no hang, and every answer is one that the document promises."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.serve import running

SCHEMATHESIS = shutil.which("schemathesis") or shutil.which("schemathesis", path=str(Path(sys.executable).parent))
SECONDS = 60

scalars = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
GOOD = {
    "/hidden_states": {"token_ids": [5, 6, 7], "layers": [1], "positions": [0, 2], "return": "both", "logits": None},
    "/tokenize": {"messages": [{"role": "user", "content": "hello"}], "template_kwargs": {}},
    "/detokenize": {"token_ids": [5, 6]},
    "/generate": {"token_ids": [5, 6], "max_new_tokens": 2, "temperature": 0.5, "seed": 1},
    "/draft_block": {
        "drafter": "good",
        "hidden": {"inline": b"\0" * 64, "dtype": "float32"},
        "token_ids": [5, 6, 7, 8],
        "response_start": 2,
        "anchors": [2],
        "top_k": 2,
    },
    "/drafters": {"name": "x", "path": "/etc/passwd", "family": None, "taps": [1]},
}


@st.composite
def almost_good(draw: st.DrawFn, route: str) -> dict[str, Any]:
    """A request of the route with up to three fields replaced, removed or added."""
    body = dict(GOOD[route])
    for _ in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from(sorted(GOOD[route])) | st.text(max_size=6))
        if draw(st.booleans()):
            body[field] = draw(values)
        else:
            body.pop(field, None)
    return body


def bombard(app: FastAPI, routes: tuple[str, ...], examples: int) -> None:
    with running(app) as url, httpx.Client(base_url=url, timeout=120) as client:

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(data=st.data())
        def attack(data: st.DataObject) -> None:
            route = data.draw(st.sampled_from(routes))
            try:
                content = msgpack.packb(data.draw(almost_good(route)))
            except (OverflowError, ValueError, UnicodeEncodeError):
                return  # msgpack cannot say it
            if data.draw(st.integers(0, 9)) == 0 and content:
                place = data.draw(st.integers(0, len(content) - 1))
                content = content[:place] + data.draw(st.binary(max_size=3)) + content[place + 1 :]
            answer = client.post(route, content=content, headers={"Content-Type": "application/msgpack"})
            assert answer.status_code < 500 or answer.status_code == 503, answer.text
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert error["code"] != "internal"
                assert "\n" not in error["message"]
                assert error["request_id"]

        attack()
        assert client.get("/readyz").status_code == 200


def test_an_empty_list_of_anchors_is_drafted_for_nobody(drafter_app: FastAPI) -> None:
    """Found by `bombard`: it was an internal error."""
    body = dict(GOOD["/draft_block"]) | {"anchors": []}
    with running(drafter_app) as url:
        (card,) = httpx.get(f"{url}/drafters").json()["drafters"]
        states = b"\0" * (4 * len(card["taps"]) * card["target_hidden_size"] * 2)
        body["hidden"] = {"inline": states.replace(b"\0\0\0\0", b"\0\0\x80?"), "dtype": "float32"}
        answer = httpx.post(
            f"{url}/draft_block", content=msgpack.packb(body), headers={"Content-Type": "application/msgpack"}
        )
        assert answer.status_code == 200, answer.text
        assert msgpack.unpackb(answer.content)["anchors"] == b""


@pytest.mark.slow
def test_the_target_has_an_answer_to_any_almost_good_request(target_app: FastAPI) -> None:
    bombard(target_app, ("/hidden_states", "/tokenize", "/detokenize", "/generate"), 400)


@pytest.mark.slow
def test_the_drafter_has_an_answer_to_any_almost_good_request(drafter_app: FastAPI) -> None:
    bombard(drafter_app, ("/draft_block", "/drafters"), 400)


@pytest.mark.soak
@pytest.mark.skipif(SCHEMATHESIS is None, reason="needs schemathesis on the path (an environment of its own will do)")
@pytest.mark.parametrize("which", ["target_app", "drafter_app"])
def test_schemathesis_finds_no_defect_and_no_answer_that_the_document_does_not_promise(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert SCHEMATHESIS is not None
    config = tmp_path / "schemathesis.toml"  # a deadline too short, or a full queue, is no defect
    config.write_text('[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503, 504]\n')
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    with running(request.getfixturevalue(which)) as url:
        command = [
            SCHEMATHESIS,
            "--config-file",
            str(config),
            "run",
            f"{url}/openapi.json",
            "--checks",
            checks,
            "--max-time",
            str(SECONDS),
        ]
        command += ["--request-timeout", "60", "--continue-on-failure", "--generation-deterministic"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert httpx.get(f"{url}/readyz").status_code == 200
    assert done.returncode == 0, done.stdout[-8000:]
