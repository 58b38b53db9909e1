"""Both services as Ray Serve applications: several replicas behind one address.

A composition root, like the command lines: it joins HTTP and compute of each service inside of a replica. Target
replicas share a folder of stored states (`store_dir`, on a file system that all of them see): any of them serves any
handle, and one that is lost takes none with it. Quotas of keys hold over all replicas of an application. Requests go
where the fewest tokens are in work; drafters are loaded where they are asked for.

    serve run replicas:target model=/models/target store_dir=/shared/states
    serve deploy serve.yaml
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
import router
import routing
import shared_quotas
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import cloudpickle, serve
from ray.serve.config import RequestRouterConfig
from starlette.types import ASGIApp, Message, Receive, Scope, Send

GIB = 1 << 30
NAMESPACE = "tauscope"
REPORT_S = 1.0
"""How often replicas say what waits and what is loaded."""

# Ray's own processes run the router, and need not have this folder on their path.
for module in (routing, router, shared_quotas):
    cloudpickle.register_pickle_by_value(module)

ROUTING = RequestRouterConfig(
    request_router_class=router.TokenRouter,
    request_routing_stats_period_s=REPORT_S,
    request_routing_stats_timeout_s=10 * REPORT_S,
)


class TargetArguments(BaseModel):
    """What a target replica is made of; see `tauscope-target --help`."""

    model_config = ConfigDict(extra="forbid")

    model: Path
    store_dir: Path
    store_space_bytes: int = 64 * GIB
    store_memory_bytes: int = 4 * GIB
    ttl_s: float = 3600.0
    device: str = "auto"
    gpu_memory_bytes: int | None = None
    deepest_layer: int | None = None
    allow_reference_kernels: bool = False
    limits: dict[str, int | float | None] = {}
    keys: Path | None = None


class DrafterArguments(BaseModel):
    """What a drafter replica is made of; see `tauscope-drafter --help`."""

    model_config = ConfigDict(extra="forbid")

    target_url: str
    target_model: Path
    drafters: list[str]
    max_loaded: int = Field(default=4, ge=1)
    device: str = "auto"
    dtype: str = "auto"
    keys: Path | None = None
    target_key: str | None = None


class PlainBodies:
    """Ray sends pieces of an answer from process to process by pickle, which knows no memoryview."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def plain(message: Message) -> None:
            if isinstance(message.get("body"), memoryview):
                message["body"] = bytes(message["body"])
            await send(message)

        await self._app(scope, receive, plain)


class Replica:
    """Ray asks its health and its load; a replica that is not ready is replaced."""

    app: FastAPI

    def record_routing_stats(self) -> dict[str, Any]:
        """What the router is told."""
        report: dict[str, Any] = {"tokens": self.app.state.waiting_tokens()}
        if hasattr(self.app.state, "catalogue"):
            report |= self.app.state.catalogue.report()
        return report

    def check_health(self) -> None:
        """Raise when the service says that it cannot work."""
        reasons = list(self.app.state.not_ready())
        if reasons:
            raise RuntimeError("; ".join(reasons))


def shared_access(keys: Path | None) -> Any:
    """Keys, and quotas that all replicas of the application share; runs inside of a replica."""
    from tauscope_serving.keys import Keyring
    from tauscope_serving.service import Access

    context = serve.get_replica_context()
    keeper = (
        ray.remote(shared_quotas.QuotaKeeper)
        .options(
            name=f"quotas-{context.app_name}",
            namespace=NAMESPACE,
            lifetime="detached",  # it outlives the replica that happens to make it
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
        )
        .remote()
    )

    async def ask(method: str, *args: Any) -> Any:
        return await getattr(keeper, method).remote(*args)

    quotas = shared_quotas.SharedQuotas(ask, replica=context.replica_id.unique_id)
    return Access(keyring=Keyring(keys), quotas=quotas)


def build_target(given: TargetArguments) -> FastAPI:
    """Load the model and give the application; runs inside of a replica."""
    from tauscope_serving.logs import set_up_logs
    from tauscope_serving.settings import ServingSettings
    from tauscope_target.app import create_app
    from tauscope_target.gpu_meter import gpu_meter
    from tauscope_target.modes import ModeRequest
    from tauscope_target.settings import DEFAULT_LIMITS, TargetSettings
    from tauscope_target.startup import EngineSettings, start_engine
    from tauscope_target.tokens import load_tokens

    set_up_logs("info")
    engine = start_engine(
        EngineSettings(
            model=given.model,
            device=given.device,  # type: ignore[arg-type]
            allow_reference_kernels=given.allow_reference_kernels,
            deepest_layer=given.deepest_layer,
            mode=ModeRequest(gpu_memory=given.gpu_memory_bytes),
        )
    )
    settings = TargetSettings(
        serving=ServingSettings(limits=DEFAULT_LIMITS.model_copy(update=given.limits), keys_file=given.keys),
        store_bytes=given.store_memory_bytes,
        ttl_s=given.ttl_s,
        spill_dir=given.store_dir,
        spill_bytes=given.store_space_bytes,
    )
    app = create_app(
        engine,
        load_tokens(given.model),
        settings,
        access=shared_access(given.keys),
        gpu_memory=gpu_meter(engine.devices, cap_bytes=given.gpu_memory_bytes),
    )
    app.add_middleware(PlainBodies)
    return app


def build_drafter(given: DrafterArguments) -> FastAPI:
    """Load the drafters and give the application; runs inside of a replica."""
    from catalogue import Catalogue

    from tauscope_drafter.app import DrafterService, create_app
    from tauscope_drafter.checkpoint.options import parse_drafter
    from tauscope_drafter.commands.devices import choose_device, choose_dtype
    from tauscope_drafter.engine import Engine
    from tauscope_drafter.gpu_meter import gpu_meter
    from tauscope_drafter.loading import open_place
    from tauscope_drafter.states import StatesSource
    from tauscope_serving.logs import set_up_logs
    from tauscope_wire.connection import Connection
    from tauscope_wire.messages import Limits

    set_up_logs("info")
    where = choose_device(given.device)
    parsed = [parse_drafter(text) for text in given.drafters]
    catalogue = Catalogue(
        Engine(open_place(where, choose_dtype(given.dtype, where), given.target_model)),
        {name: (Path(path), options) for name, path, options in parsed},
        max_loaded=given.max_loaded,
    )
    limits = Limits(
        max_body_bytes=2 * GIB,
        max_tokens=262_144,
        max_anchors=65_536,
        max_top_k=1024,
        max_queued=256,
        default_deadline_s=600.0,
        max_deadline_s=3600.0,
    )
    app = create_app(
        DrafterService(
            engine=catalogue,
            states=StatesSource(Connection(given.target_url, key=given.target_key)),
            limits=limits,
            version=version("tauscope"),
            roots=(),  # every replica must have the same drafters: they are named at the start
            access=shared_access(given.keys),
            gpu_memory=gpu_meter(where, cap_bytes=None),
        )
    )
    app.state.catalogue = catalogue
    app.add_middleware(PlainBodies)
    return app


def target(args: dict[str, Any]) -> serve.Application:
    """The application `replicas:target`; fields of `TargetArguments`. The configuration decides about replicas."""
    given = TargetArguments.model_validate(args)

    def build() -> FastAPI:
        return build_target(given)

    @serve.deployment(name="target", max_ongoing_requests=256, request_router_config=ROUTING)
    @serve.ingress(build)
    class Target(Replica):
        pass

    return Target.bind()  # type: ignore[attr-defined, no-any-return]


def drafter(args: dict[str, Any]) -> serve.Application:
    """The application `replicas:drafter`; fields of `DrafterArguments`. The configuration decides about replicas."""
    given = DrafterArguments.model_validate(args)

    def build() -> FastAPI:
        return build_drafter(given)

    @serve.deployment(name="drafter", max_ongoing_requests=64, request_router_config=ROUTING)
    @serve.ingress(build)
    class Drafter(Replica):
        pass

    return Drafter.bind()  # type: ignore[attr-defined, no-any-return]
