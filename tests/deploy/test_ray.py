"""Two target replicas and a drafter under Ray Serve: the answers of one service, and no request lost with a replica."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgpack
import numpy as np
import pytest
import yaml

from kit.serve import running
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app
from tauscope_target.settings import DEFAULT_LIMITS, TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_target.tokens import load_tokens

ray = pytest.importorskip("ray", reason="needs ray[serve], in an environment of its own")

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "deploy" / "demo" / "models"
PORT = 18_473

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]  # ray's own warnings are not ours to judge


def test_the_configuration_file_fits_ray_and_the_arguments_of_the_applications() -> None:
    import replicas
    from ray.serve.schema import ServeDeploySchema

    document = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
    deployed = ServeDeploySchema.model_validate(document)
    kinds = {"target": replicas.TargetArguments, "drafter": replicas.DrafterArguments}
    for application in deployed.applications:
        module, _, builder = application.import_path.partition(":")
        assert module == "replicas"
        assert hasattr(replicas, builder)
        kinds[application.name].model_validate(application.args)
        assert [deployment.name for deployment in application.deployments] == [application.name]


class Cluster(NamedTuple):
    """Addresses: through Ray, and of one service beside it."""

    target: str
    drafter: str
    single: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from kit import ray_cluster

    target = ray_cluster.target(tmp_path_factory.mktemp("states"))
    drafter = ray_cluster.application(
        "drafter",
        target_url=f"http://127.0.0.1:{PORT}/target",
        target_model=f"{MODELS}/target",
        drafters=[f"a={MODELS}/drafter-a", f"b={MODELS}/drafter-b/checkpoint.pt", f"small={MODELS}/drafter-small"],
        max_loaded=1,
    )
    with ray_cluster.serving(PORT, target, drafter) as address:
        engine = start_engine(EngineSettings(MODELS / "target", "cpu", allow_reference_kernels=True))
        settings = TargetSettings(serving=ServingSettings(limits=DEFAULT_LIMITS))
        with running(create_app(engine, load_tokens(MODELS / "target"), settings)) as single:
            yield Cluster(f"{address}/target", f"{address}/drafter", single)


def post(url: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url, json=body, timeout=300)


def payload(answer: httpx.Response) -> tuple[Any, ...]:
    body = msgpack.unpackb(answer.content)
    return body["planes"], body["shape"], body["token_ids"], [chunk["data"] for chunk in body["chunks"]]


def is_same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Equal but for the order of sums: another company in a pass costs units in the last place of float32."""
    pairs = [
        (np.frombuffer(a, "<f4"), np.frombuffer(b, "<f4"))
        for ours, theirs in zip(left[3], right[3], strict=True)
        for a, b in zip(ours, theirs, strict=True)
    ]
    return left[:3] == right[:3] and all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)


REQUESTS = [
    {"token_ids": [5 + (3 * i + k) % 200 for i in range(20 + k)], "layers": [1, 3, 5], "dtype": "float32"}
    for k in range(12)
]


def test_answers_are_those_of_one_service(cluster: Cluster) -> None:
    for body in REQUESTS[:4]:
        assert payload(post(f"{cluster.target}/hidden_states", body)) == payload(
            post(f"{cluster.single}/hidden_states", body)
        )
    for route, body in (
        ("/tokenize", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/detokenize", {"token_ids": [5, 6, 7]}),
        ("/hidden_states", {"token_ids": [5], "layers": [70]}),
        ("/hidden_states", {"token_ids": []}),
        ("/nowhere", {}),
    ):
        ours, theirs = post(cluster.target + route, body), post(cluster.single + route, body)
        assert ours.status_code == theirs.status_code
        if ours.status_code >= 400:
            assert ours.json()["error"]["code"] == theirs.json()["error"]["code"]
        else:
            assert ours.json() == theirs.json()


def test_any_replica_serves_any_handle(cluster: Cluster) -> None:
    handles = [post(f"{cluster.target}/hidden_states", b | {"return": "handle"}).json()["handle"] for b in REQUESTS]
    for _ in range(3):  # 36 reads, dealt out to two replicas
        for handle in handles:
            assert httpx.get(f"{cluster.target}/hidden_states/{handle}", timeout=60).status_code == 200


IDS = [5 + (7 * i) % 200 for i in range(40)]


def draft(drafter_url: str, target_url: str, name: str, **headers: str) -> httpx.Response:
    cards = httpx.get(f"{drafter_url}/drafters", timeout=60).json()["drafters"]
    (taps,) = [card["taps"] for card in cards if card["name"] == name]
    hidden = post(f"{target_url}/hidden_states", {"token_ids": IDS, "layers": taps, "return": "handle"}).json()
    body = {"drafter": name, "hidden": {"handle": hidden["handle"]}, "token_ids": IDS, "response_start": 20, "top_k": 2}
    return httpx.post(f"{drafter_url}/draft_block", json=body, headers=headers, timeout=300)


def test_the_drafter_reads_handles_through_the_one_address(cluster: Cluster) -> None:
    answer = draft(cluster.drafter, cluster.target, "a")
    assert answer.status_code == 200, answer.text
    assert len(msgpack.unpackb(answer.content)["anchors"]) == 4 * (len(IDS) - 1 - 20)


def loads(cluster: Cluster) -> int:
    """How often replicas have loaded a drafter, from what each of them says when it is asked directly."""
    actors = [a for a in ray.util.list_named_actors(all_namespaces=True) if "drafter#" in a["name"]]
    assert len(actors) == 2
    return sum(
        ray.get(ray.get_actor(a["name"], namespace=a["namespace"]).record_routing_stats.remote(), timeout=60)["loads"]
        for a in actors
    )


def test_drafters_are_multiplexed_and_stay_where_they_are_loaded(cluster: Cluster) -> None:
    """Three drafters, two replicas with a place for one each: drafts are right, and a named drafter is not reloaded."""
    names = [card["name"] for card in httpx.get(f"{cluster.drafter}/drafters", timeout=60).json()["drafters"]]
    assert names == ["a", "b", "small"]
    first = {name: draft(cluster.drafter, cluster.target, name) for name in names}
    for name, answer in first.items():
        assert answer.status_code == 200, answer.text
        assert msgpack.unpackb(answer.content)["drafter"]["name"] == name
    for name in ("a", "b"):  # wherever they were: from now on one replica has "a" and the other "b"
        draft(cluster.drafter, cluster.target, name, **{"X-Tauscope-Drafter": name})
    before = loads(cluster)
    for number in range(20):
        name = ("a", "b")[number % 2]
        answer = draft(cluster.drafter, cluster.target, name, **{"X-Tauscope-Drafter": name})
        assert payload_of_draft(answer) == payload_of_draft(first[name])
    assert loads(cluster) == before
    print(f"20 drafts of two drafters in turn on two places: {loads(cluster) - before} loads")


def payload_of_draft(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    body = msgpack.unpackb(answer.content)
    return [body[name] for name in ("anchors", "token_ids", "top_ids")]


def test_a_replica_that_dies_under_load_loses_no_request_and_no_handle(cluster: Cluster) -> None:
    handles = [post(f"{cluster.target}/hidden_states", b | {"return": "handle"}).json()["handle"] for b in REQUESTS]
    half = threading.Event()
    retried: list[int] = []
    done: list[int] = []

    def one(number: int) -> tuple[Any, ...]:
        """What a client does: a request computes the same again, so it may be sent again."""
        for _ in range(20):
            try:
                answer = post(f"{cluster.target}/hidden_states", REQUESTS[number % len(REQUESTS)])
            except httpx.TransportError:
                retried.append(number)
                continue
            if answer.status_code == 200:
                done.append(number)
                if len(done) > 20:
                    half.set()
                return payload(answer)
            assert answer.status_code >= 500, answer.text
            retried.append(number)
        raise AssertionError(f"request {number} was lost")

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(one, number) for number in range(80)]
        assert half.wait(120)
        actors = [a for a in ray.util.list_named_actors(all_namespaces=True) if "target#" in a["name"]]
        assert len(actors) == 2
        ray.kill(ray.get_actor(actors[0]["name"], namespace=actors[0]["namespace"]), no_restart=True)
        answers = [future.result() for future in futures]
    expected = [payload(post(f"{cluster.single}/hidden_states", body)) for body in REQUESTS]
    assert all(is_same(answer, expected[number % len(REQUESTS)]) for number, answer in enumerate(answers))
    for handle in handles:
        assert httpx.get(f"{cluster.target}/hidden_states/{handle}", timeout=60).status_code == 200
    print(f"80 requests, {len(retried)} sent again after a replica died")
