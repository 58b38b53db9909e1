"""The target service over real HTTP, through the client's own connection."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from kit.engine import Checkpoint, Reference, Start, job, random_ids, results
from kit.serve import SMALL_LIMITS, running
from tauscope_serving.keyfile import add_key
from tauscope_serving.keys import Keyring
from tauscope_serving.service import Access
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.settings import TargetSettings
from tauscope_target.tokens import CheckpointTokens, load_tokens
from tauscope_wire.connection import Connection
from tauscope_wire.errors import (
    DeadlineError,
    ErrorCode,
    GoneError,
    PermissionDeniedError,
    RequestError,
    TauscopeError,
    TooLargeError,
)
from tauscope_wire.expectations import HiddenExpectation
from tauscope_wire.messages import (
    DetokenizeAnswer,
    DetokenizeRequest,
    GenerateAnswer,
    GenerateRequest,
    HiddenReceipt,
    HiddenRequest,
    LogitsRequest,
    Message,
    TargetInfo,
    TokenizeAnswer,
    TokenizeRequest,
)
from tauscope_wire.reader import read_hidden
from tauscope_wire.tensors import HiddenAnswer

LIMITS = SMALL_LIMITS.model_copy(update={"max_tokens": 300, "max_layers": 6, "max_answer_bytes": 200_000})
SETTINGS = TargetSettings(serving=ServingSettings(limits=LIMITS), pass_tokens=512, max_wait_s=0.0, store_bytes=300_000)
IDS = random_ids(40).tolist()


@pytest.fixture(scope="module")
def tokens(checkpoint: Checkpoint) -> CheckpointTokens:
    found = load_tokens(checkpoint("hybrid"))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def url(start: Start, tokens: CheckpointTokens) -> Iterator[str]:
    with running(create_app(start("hybrid"), tokens, SETTINGS)) as address:
        yield address


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Connection]:
    with Connection(url) as connection:
        yield connection


def hidden(service: Connection, **fields: Any) -> HiddenAnswer:
    return service.post_tensors("/hidden_states", HiddenRequest(**({"token_ids": IDS} | fields)), read_hidden)


def receipt(service: Connection, **fields: Any) -> HiddenReceipt:
    request = HiddenRequest(**({"token_ids": IDS, "return_": "handle"} | fields))
    return service.post_json("/hidden_states", request, HiddenReceipt)


def test_the_answer_is_the_engines_result(service: Connection, start: Start) -> None:
    answer = hidden(service, layers=[5, 1, -1], final_norm=True, dtype="float32")
    (expected,) = results(start("hybrid"), [job(np.array(IDS, np.int32), (5, 1, -1), final_norm=True)])
    assert answer.planes == (5, 1, -1, "final_norm")
    assert answer.states is not None
    np.testing.assert_array_equal(answer.states, expected.states)
    assert answer.token_ids.tolist() == IDS
    assert answer.handle is None
    assert answer.numerics.reference_kernels
    assert answer.model.stop_token_ids == [3, 0]


def test_both_conventions_name_the_same_states(service: Connection) -> None:
    canonical = hidden(service, layers=[-1, 0, 7], dtype="float32")
    shifted = hidden(service, layers=[0, 1, 8], convention="tuple", dtype="float32")
    assert shifted.planes == canonical.planes == (-1, 0, 7)
    assert shifted.requested == {"convention": "tuple", "layers": [0, 1, 8]}
    np.testing.assert_array_equal(shifted.states, canonical.states)


def test_a_handle_gives_the_same_data_as_the_inline_answer(service: Connection, start: Start) -> None:
    inline = hidden(service, layers=[1, 3], dtype="float32")
    kept = receipt(service, layers=[1, 3], dtype="float32")
    fetched = service.get_tensors(f"/hidden_states/{kept.handle}", None, read_hidden)
    np.testing.assert_array_equal(fetched.states, inline.states)
    assert kept.shape == (2, 40, start("hybrid").facts.model.hidden_size)
    assert fetched.digest == kept.digest
    part = service.get_tensors(f"/hidden_states/{kept.handle}", {"planes": "3", "start": 10, "stop": 20}, read_hidden)
    assert part.planes == (3,)
    assert part.positions == (10, 20)
    assert inline.states is not None
    np.testing.assert_array_equal(part.states, inline.states[1:, 10:20])
    turned = service.get_tensors(f"/hidden_states/{kept.handle}", {"planes": "3,1", "stop": 7}, read_hidden)
    assert turned.planes == (3, 1)
    np.testing.assert_array_equal(turned.states, inline.states[::-1, :7])


def passes(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    line = next(text for text in lines if text.startswith("tauscope_target_passes "))
    return float(line.split()[1])


def test_the_same_request_again_costs_no_pass(service: Connection, url: str) -> None:
    first = receipt(service, layers=[2], token_ids=IDS[:31])
    before = passes(url)
    again = receipt(service, layers=[2], token_ids=IDS[:31])
    assert passes(url) == before
    assert (first.cached, again.cached) == (False, True)
    assert again.handle == first.handle
    assert receipt(service, layers=[2], token_ids=IDS[:30]).handle != first.handle
    assert passes(url) == before + 1


def test_both_returns_data_and_handle(service: Connection) -> None:
    answer = hidden(service, layers=[4], return_="both")
    assert answer.handle is not None
    assert answer.states is not None
    fetched = service.get_tensors(f"/hidden_states/{answer.handle}", None, read_hidden)
    np.testing.assert_array_equal(fetched.states, answer.states)


def test_a_deleted_and_an_unknown_handle_answer_410(service: Connection, url: str) -> None:
    kept = receipt(service, layers=[6])
    headers = service.head(f"/hidden_states/{kept.handle}")
    assert headers["x-tauscope-digest"] == kept.digest
    service.delete(f"/hidden_states/{kept.handle}")
    for handle in (kept.handle, "0" * 48, "no-such"):
        for method in ("GET", "HEAD", "DELETE"):
            assert httpx.request(method, f"{url}/hidden_states/{handle}").status_code == 410


def test_an_evicted_handle_is_gone_and_can_be_made_again(service: Connection) -> None:
    first = receipt(service, layers=[0, 1, 2], dtype="float32")
    for n in range(20, 40):
        receipt(service, layers=[0, 1, 2], token_ids=IDS[:n], dtype="float32")
    with pytest.raises(GoneError):
        service.get_tensors(f"/hidden_states/{first.handle}", None, read_hidden)
    again = receipt(service, layers=[0, 1, 2], dtype="float32")
    assert not again.cached
    assert again.handle == first.handle
    assert again.digest == first.digest


def test_last_asks_for_one_position(service: Connection) -> None:
    whole = hidden(service, layers=[7], dtype="float32")
    last = hidden(service, layers=[7], positions="last", dtype="float32")
    assert last.positions == (39, 40)
    assert whole.states is not None
    np.testing.assert_array_equal(last.states, whole.states[:, 39:])


def test_logits_come_with_the_states_or_alone_with_the_handle_and_never_as_lists(service: Connection, url: str) -> None:
    logits = LogitsRequest(top_k=3)
    answer = hidden(service, layers=[1], logits=logits)
    assert answer.logits is not None
    assert answer.logits.next_logprobs is not None
    request = HiddenRequest(token_ids=IDS, layers=[1], logits=logits, return_="handle")
    read = partial(read_hidden, expect=HiddenExpectation.of_request(request))
    for _ in range(2):  # computed, then found
        kept = service.post_tensors("/hidden_states", request, read)
        assert kept.states is None and kept.logits is not None and kept.handle is not None
        for name in ("argmax_ids", "top_ids", "top_logprobs", "next_logprobs"):
            np.testing.assert_array_equal(getattr(kept.logits, name), getattr(answer.logits, name))
    fetched = service.get_tensors(f"/hidden_states/{kept.handle}", None, read_hidden)
    assert fetched.digest == kept.digest
    raw = httpx.post(f"{url}/hidden_states", json={"token_ids": IDS, "layers": [1], "logits": {}, "return": "handle"})
    assert raw.headers["content-type"] == "application/msgpack"
    assert msgpack.unpackb(raw.content)["chunks"] == []
    plain = httpx.post(f"{url}/hidden_states", json={"token_ids": IDS, "layers": [1], "return": "handle"})
    assert "logits" not in plain.json()


def test_text_and_messages_give_the_states_of_their_ids(service: Connection) -> None:
    messages = [Message(role="user", content="add two numbers, é")]
    for prompt in ({"text": "def f():"}, {"messages": messages, "template_kwargs": {"thinking": True}}):
        ids = service.post_json("/tokenize", TokenizeRequest(**prompt), TokenizeAnswer).token_ids
        by_prompt = hidden(service, token_ids=None, **prompt, layers=[3], dtype="float32")
        by_ids = hidden(service, token_ids=ids, layers=[3], dtype="float32")
        assert by_prompt.token_ids.tolist() == ids
        np.testing.assert_array_equal(by_prompt.states, by_ids.states)


def test_tokenize_and_detokenize_round_trip(service: Connection) -> None:
    text = "def f(x):\n    return 'héllo'"
    ids = service.post_json("/tokenize", TokenizeRequest(text=text), TokenizeAnswer).token_ids
    answer = service.post_json("/detokenize", DetokenizeRequest(token_ids=[2, *ids, 3]), DetokenizeAnswer)
    assert answer.text == f"<|im_start|>{text}<|im_end|>"
    assert len(answer.pieces) == len(ids) + 2
    assert answer.pieces[0] == "<|im_start|>"
    plain = DetokenizeRequest(token_ids=[2, *ids, 3], skip_special_tokens=True)
    assert service.post_json("/detokenize", plain, DetokenizeAnswer).text == text


def test_generate_answers_ids_text_tail_and_numerics(service: Connection) -> None:
    request = GenerateRequest(token_ids=IDS, max_new_tokens=8, tail_tokens=4)
    answer = service.post_json("/generate", request, GenerateAnswer)
    assert answer.prompt_token_ids == IDS
    assert len(answer.token_ids) <= 8
    assert len(answer.tail_token_ids) == 4
    text = service.post_json("/detokenize", DetokenizeRequest(token_ids=answer.token_ids), DetokenizeAnswer).text
    assert answer.text == text
    assert answer.numerics.linear_attention == "torch-reference"
    continued = hidden(service, token_ids=IDS + answer.token_ids, layers=[0], logits=LogitsRequest())
    assert continued.logits is not None
    assert continued.logits.argmax_ids[39 : 39 + len(answer.token_ids)].tolist() == answer.token_ids


def test_info_tells_what_a_client_needs(service: Connection) -> None:
    info = service.get_json("/info", TargetInfo)
    assert info.model.num_layers == 8
    assert info.limits == LIMITS
    assert info.chat_template
    assert info.dtypes == ["bfloat16", "float32"]
    assert {test.status for test in info.self_tests} == {"passed"}
    assert info.store["max_bytes"] == 300_000


def test_health_and_metrics(url: str) -> None:
    assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
    assert httpx.get(f"{url}/readyz").status_code == 200
    metrics = httpx.get(f"{url}/metrics").text
    assert "tauscope_target_store_bytes" in metrics
    assert "tauscope_target_passes" in metrics


def test_the_openapi_document_names_every_route(url: str) -> None:
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    assert {"/hidden_states", "/hidden_states/{handle}", "/tokenize", "/detokenize", "/generate", "/info"} <= set(paths)
    assert set(paths["/hidden_states/{handle}"]) == {"get", "head", "delete"}
    assert httpx.get(f"{url}/docs").status_code == 200


REFUSALS: list[tuple[dict[str, Any], ErrorCode, str]] = [
    ({"layers": [1, 3, 70]}, ErrorCode.LAYER_OUT_OF_RANGE, "layers[2]=70: the model has 8 decoder layers"),
    ({"layers": [-2]}, ErrorCode.LAYER_OUT_OF_RANGE, "layers[0]=-2"),
    ({"layers": [9], "convention": "tuple"}, ErrorCode.LAYER_OUT_OF_RANGE, "layers[0]=9"),
    ({"layers": [1, 1]}, ErrorCode.DUPLICATE_LAYER, "layers[1]=1"),
    ({"layers": [1], "token_ids": []}, ErrorCode.EMPTY_PROMPT, "no tokens"),
    ({"layers": [1], "token_ids": [1, 9999]}, ErrorCode.TOKEN_OUT_OF_RANGE, "token_ids[1]=9999: the vocabulary has "),
    (
        {"layers": [1], "token_ids": [1] * 301},
        ErrorCode.PROMPT_TOO_LONG,
        "301 tokens: this service accepts at most 300",
    ),
    ({"layers": [1], "positions": [5, 5]}, ErrorCode.POSITION_OUT_OF_RANGE, "positions [5, 5)"),
    ({"layers": [1], "positions": [5, 41]}, ErrorCode.POSITION_OUT_OF_RANGE, "40 tokens"),
    ({"layers": [1], "positions": [-1, 3]}, ErrorCode.POSITION_OUT_OF_RANGE, "positions [-1, 3)"),
    ({}, ErrorCode.INVALID_REQUEST, "nothing is asked for"),
    ({"layers": [0, 1, 2, 3, 4, 5, 6]}, ErrorCode.LIMIT_EXCEEDED, "layers: 7, at most 6"),
    ({"layers": [1], "logits": {"top_k": 65}}, ErrorCode.LIMIT_EXCEEDED, "logits.top_k: 65, at most 64"),
    ({"layers": [0, 1, 2, 3], "token_ids": [1] * 300, "dtype": "float32"}, ErrorCode.ANSWER_TOO_LARGE, "bytes"),
    ({"layers": [1], "deadline_s": 1000}, ErrorCode.LIMIT_EXCEEDED, "deadline_s"),
    ({"layers": [1], "token_ids": None, "messages": []}, ErrorCode.CHAT_TEMPLATE_FAILED, ""),
]


@pytest.mark.parametrize(("fields", "code", "words"), REFUSALS)
def test_a_wrong_request_is_told_what_is_wrong_the_value_and_the_bound(
    url: str, fields: dict[str, Any], code: ErrorCode, words: str
) -> None:
    body = {key: value for key, value in ({"token_ids": IDS} | fields).items() if value is not None}
    answer = httpx.post(f"{url}/hidden_states", json=body)
    error = answer.json()["error"]
    if code is ErrorCode.CHAT_TEMPLATE_FAILED and error["code"] == ErrorCode.EMPTY_PROMPT:
        return  # this template renders nothing for no messages
    assert (error["code"], answer.status_code // 100) == (code, 4)
    assert words in error["message"]


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "add_generation_prompt", "return_tensors"])
def test_a_template_variable_cannot_change_how_the_template_is_run(url: str, name: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "template_kwargs": {name: "x"}}
    answer = httpx.post(f"{url}/tokenize", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "chat_template_failed"


@pytest.mark.parametrize(
    "query", ["planes=7", "planes=x", "planes=1,1", "start=5&stop=5", "start=-1", "stop=41", "plane=1"]
)
def test_a_wrong_part_of_a_handle_is_refused(service: Connection, url: str, query: str) -> None:
    kept = receipt(service, layers=[1, 2])
    answer = httpx.get(f"{url}/hidden_states/{kept.handle}?{query}")
    assert answer.status_code == 422, answer.text


def test_msgpack_requests_are_json_requests_in_another_coat(url: str) -> None:
    fields = {"token_ids": IDS, "layers": [1], "return": "handle"}
    packed = httpx.post(
        f"{url}/hidden_states", content=msgpack.packb(fields), headers={"Content-Type": "application/msgpack"}
    )
    assert packed.json()["handle"] == httpx.post(f"{url}/hidden_states", json=fields).json()["handle"]


def test_the_body_is_one_msgpack_map_for_anybody(url: str, start: Start) -> None:
    answer = httpx.post(f"{url}/hidden_states", json={"token_ids": IDS, "layers": [1]})
    fields = msgpack.unpackb(answer.content)
    assert fields["schema"] == "tauscope.hidden/1"
    assert fields["end"] is True
    assert sum(len(chunk["data"][0]) for chunk in fields["chunks"]) == 40 * start("hybrid").facts.model.hidden_size * 2


def test_a_deadline_that_passes_answers_504(service: Connection) -> None:
    with pytest.raises(DeadlineError):
        service.post_json(
            "/generate", GenerateRequest(token_ids=IDS, max_new_tokens=250, deadline_s=0.01), GenerateAnswer
        )


def test_many_callers_at_once_get_their_own_rows(service: Connection, start: Start) -> None:
    from concurrent.futures import ThreadPoolExecutor

    lengths = [3, 60, 17, 33, 5, 90, 41, 28]

    def ask(n: int) -> HiddenAnswer:
        return hidden(service, token_ids=random_ids(n, seed=n).tolist(), layers=[2, 6], dtype="float32")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, lengths))
    for n, answer in zip(lengths, answers, strict=True):
        (expected,) = results(start("hybrid"), [job(random_ids(n, seed=n), (2, 6))])
        assert answer.states is not None
        np.testing.assert_allclose(answer.states, expected.states, rtol=1e-4, atol=1e-4)


@pytest.fixture
def keyed(start: Start, tokens: CheckpointTokens, tmp_path: Path) -> Iterator[tuple[str, Callable[..., str]]]:
    """A service with keys, and a function that makes one."""
    file = tmp_path / "keys.json"
    add_key(file, "operator", roles=("admin",))
    serving = ServingSettings(limits=LIMITS, keys_file=file)
    app = create_app(
        start("hybrid"), tokens, SETTINGS.model_copy(update={"serving": serving}), access=Access(keyring=Keyring(file))
    )
    names = {"ann": ("read", "extract"), "ben": ("read", "extract"), "cleo": ("read",)}
    made = {name: add_key(file, name, roles=roles) for name, roles in names.items()}
    with running(app) as address:
        yield address, made.__getitem__


def test_a_handle_is_its_owners_unless_it_is_shared(keyed: tuple[str, Callable[..., str]]) -> None:
    url, key_of = keyed
    with Connection(url, key=key_of("ann")) as ann, Connection(url, key=key_of("ben")) as ben:
        own, shared = receipt(ann, layers=[1]), receipt(ann, layers=[2], shared=True)
        with pytest.raises(GoneError):
            ben.get_tensors(f"/hidden_states/{own.handle}", None, read_hidden)
        assert ben.get_tensors(f"/hidden_states/{shared.handle}", None, read_hidden).planes == (2,)
        assert receipt(ben, layers=[1]).handle != own.handle, (
            "the name of a handle tells nothing about another's prompt"
        )


def test_a_key_that_may_only_read_cannot_compute(keyed: tuple[str, Callable[..., str]]) -> None:
    url, key_of = keyed
    with Connection(url, key=key_of("cleo")) as cleo:
        assert cleo.get_json("/info", TargetInfo).model.num_layers == 8
        with pytest.raises(PermissionDeniedError):
            receipt(cleo, layers=[1])
    with Connection(url) as nobody, pytest.raises(TauscopeError) as caught:
        nobody.get_json("/info", TargetInfo)
    assert caught.value.code is ErrorCode.KEY_REQUIRED


def test_a_service_without_tokenizer_takes_ids_only(start: Start) -> None:
    with running(create_app(start("llama"), None, SETTINGS)) as url, Connection(url) as service:
        assert not service.get_json("/info", TargetInfo).chat_template
        assert hidden(service, layers=[1]).planes == (1,)
        with pytest.raises(RequestError, match="send token_ids"):
            service.post_json("/tokenize", TokenizeRequest(text="a"), TokenizeAnswer)
        assert (
            service.post_json("/generate", GenerateRequest(token_ids=IDS, max_new_tokens=2), GenerateAnswer).text == ""
        )


def test_a_prompt_longer_than_the_model_was_made_for_is_refused(start: Start) -> None:
    limits = LIMITS.model_copy(update={"max_tokens": 5000, "max_new_tokens": 5000})
    settings = SETTINGS.model_copy(update={"serving": ServingSettings(limits=limits)})
    with running(create_app(start("llama"), None, settings)) as url, Connection(url) as service:
        with pytest.raises(TooLargeError, match="the model was made for at most 2048"):
            hidden(service, layers=[1], token_ids=[1] * 2049)
        with pytest.raises(TooLargeError, match="at most 2048"):
            service.post_json("/generate", GenerateRequest(token_ids=IDS, max_new_tokens=2040), GenerateAnswer)


def test_states_over_http_equal_transformers_own(service: Connection, reference: Reference) -> None:
    import torch

    answer = hidden(service, layers=[0, 3, 6], dtype="float32")
    with torch.no_grad():
        states = reference("hybrid")(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    for plane, layer in enumerate((0, 3, 6)):
        assert answer.states is not None
        np.testing.assert_array_equal(answer.states[plane], states[layer + 1][0].numpy())
