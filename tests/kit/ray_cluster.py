"""Ray Serve on this machine, with the applications of `deploy/ray/serve.yaml`. Needs `ray[serve]`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "deploy" / "demo" / "models"
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "deploy" / "ray"), "OMP_NUM_THREADS": "1"}
START_S = 300.0


def until(is_so: Callable[[], bool]) -> None:
    """Ask again until it is so; Ray tells nobody when something of it is ready."""
    pause, ends_s = threading.Event(), time.monotonic() + START_S
    while not is_so():
        assert time.monotonic() < ends_s
        pause.wait(0.5)


def application(kind: str, *, name: str | None = None, scaling: dict[str, Any] | None = None, **args: Any) -> Any:
    """An application of `serve.yaml` on a CPU of this machine, with two replicas unless `scaling` says otherwise."""
    document = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
    found = deepcopy(next(one for one in document["applications"] if one["name"] == kind))
    found |= {"name": name or kind, "route_prefix": f"/{name or kind}", "runtime_env": {"env_vars": ENVIRONMENT}}
    found["args"] |= {"device": "cpu", "keys": None} | args
    for deployment in found["deployments"]:
        deployment["ray_actor_options"] = {"num_cpus": 0.1}
        deployment["autoscaling_config"] |= scaling or {"min_replicas": 2, "max_replicas": 2}
    return found


def target(store: Path, **more: Any) -> Any:
    """The target with the bundled model."""
    return application("target", model=f"{MODELS}/target", store_dir=str(store), allow_reference_kernels=True, **more)


def replicas_of(name: str) -> list[dict[str, Any]]:
    """Actors of the replicas of an application."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return [actor for actor in actors if actor["name"].startswith(f"SERVE_REPLICA::{name}#")]


@contextmanager
def serving(port: int, *applications: Any) -> Iterator[str]:
    """Deploy applications, one after the other as an operator would; gives the address in front of them."""
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": ENVIRONMENT})
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        for count in range(1, len(applications) + 1):
            document = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": applications[:count]}
            _get_global_client().deploy_apps(ServeDeploySchema.model_validate(document))
            until(lambda count=count: [a.status for a in serve.status().applications.values()] == ["RUNNING"] * count)
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
    finally:
        ray.shutdown()
