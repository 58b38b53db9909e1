"""The target service over HTTP. No torch: the engine is given as a protocol, and `cli` joins the two."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI

from tauscope_serving.access import Reader
from tauscope_serving.compute import ComputeLoop
from tauscope_serving.gpu_memory import GpuMeter, no_gpu, publish_gpu_memory
from tauscope_serving.loop_metrics import publish_loop
from tauscope_serving.metrics import TOKENS_BUCKETS, ServiceMetrics
from tauscope_serving.packing import fair_pack
from tauscope_serving.service import Access, create_service
from tauscope_target.file_route import FileRoute
from tauscope_target.hidden_routes import HiddenRoutes
from tauscope_target.jobs import Engine, Job, Result, Tokens
from tauscope_target.parts import TargetParts
from tauscope_target.settings import TargetSettings
from tauscope_target.spill import SpillDirectory
from tauscope_target.store import HandleStore
from tauscope_target.store_folder import StoreFolder
from tauscope_target.text_routes import TextRoutes
from tauscope_wire.messages import TargetInfo
from tauscope_wire.tracing import Tracing

MAX_CONSECUTIVE_FAILURES = 3
"""Failed passes in a row after which the service calls itself not ready: the device is probably lost."""

DESCRIPTION = "Hidden layers of a large model over HTTP: intermediate layers, logits summaries, handles, generation."


def create_app(
    engine: Engine,
    tokens: Tokens | None,
    settings: TargetSettings,
    *,
    access: Access | None = None,
    secret: bytes | None = None,
    gpu_memory: GpuMeter = no_gpu,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The application; its lifespan owns the compute thread.

    Args:
        engine: a started engine.
        tokens: the tokenizer, or None when the checkpoint has none.
        settings: limits and budgets.
        access: keys and quotas; open by default.
        secret: keys the handles; by default that of the spill directory, or a new one, so that handles of an earlier
            process are unknown.
        gpu_memory: tells the memory of the device against its cap.
        tracing: makes spans of requests and their stages.

    Raises:
        RequestError: the spill directory or the store's folder cannot be used.
    """
    access = access or Access()
    metrics = ServiceMetrics("tauscope_target")
    pass_tokens = settings.pass_tokens or engine.facts.pass_tokens
    tokens_of_passes = metrics.histogram("pass_tokens", "Tokens of a pass, without padding", buckets=TOKENS_BUCKETS)
    loop: ComputeLoop[Job, Result] = ComputeLoop(
        engine.execute,
        pack=fair_pack(max_cost=pass_tokens, max_jobs=settings.max_batch),
        max_queued=settings.limits.max_queued,
        gather_s=settings.max_wait_s,
        gather_cost=settings.gather_tokens,
        on_pass=tokens_of_passes.observe,
    )
    spill = None
    if settings.spill_dir is not None:
        spill = SpillDirectory(settings.spill_dir, max_bytes=settings.spill_bytes, ttl_s=settings.ttl_s)
        secret = secret if secret is not None else spill.secret
    folder = None if settings.store_dir is None else StoreFolder(settings.store_dir)
    store = HandleStore(max_bytes=settings.store_bytes, ttl_s=settings.ttl_s, backing=spill, folder=folder)
    parts = TargetParts(
        engine=engine,
        loop=loop,
        tokens=tokens,
        store=store,
        settings=settings,
        metrics=metrics,
        quotas=access.quotas,
        secret=secret if secret is not None else secrets.token_bytes(32),
    )
    publish_loop(metrics, loop, cost="tokens")
    publish_gpu_memory(metrics, gpu_memory)
    _publish_store(metrics, store)
    full = metrics.gauge("spill_full", "1 while the disk of the spill directory takes no new handles")
    full.set_function(lambda: 0 if spill is None else spill.problem() is not None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop.start()
        yield
        await asyncio.to_thread(loop.close, drain_s=settings.serving.drain_s)
        await asyncio.to_thread(store.close)

    def not_ready() -> list[str]:
        state = loop.state()
        reasons = []
        if not state.is_alive:
            reasons.append("the compute thread does not run")
        if state.busy_s > settings.stuck_s:
            reasons.append(f"a pass has run for {state.busy_s:.0f} s, more than {settings.stuck_s:g} s")
        if state.consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            reasons.append(f"the last {state.consecutive_failures} passes failed; see the log")
        if spill is not None and (problem := spill.problem()) is not None:
            reasons.append(problem)
        return reasons

    version = _own_version()
    app = create_service(
        "tauscope target",
        version=version,
        description=DESCRIPTION,
        metrics=metrics,
        not_ready=not_ready,
        access=access,
        lifespan=lifespan,
        tracing=tracing,
    )
    app.state.waiting_tokens = lambda: loop.state().queued_cost  # for a router that shares the load out
    app.include_router(HiddenRoutes(parts).router())
    app.include_router(FileRoute(parts).router())
    app.include_router(TextRoutes(parts).router())

    @app.get("/info", tags=["service"], summary="Model, limits, numerics, self-tests")
    async def info(caller: Reader) -> TargetInfo:
        facts = engine.facts
        return TargetInfo(
            version=version,
            model=facts.model,
            architecture=facts.architecture,
            layer_types=facts.layer_types,
            numerics=facts.numerics,
            mode=facts.mode,
            mode_cannot=facts.mode_cannot,
            limits=settings.limits,
            self_tests=facts.self_tests,
            deepest_layer=facts.deepest_layer,
            dtypes=facts.dtypes,
            chat_template=tokens is not None and tokens.has_chat_template,
            store=store.facts(),
            noise_floor=facts.noise_floor,
            passes={
                "pass_tokens": facts.pass_tokens,
                "max_requests": settings.max_batch,
                "longest_tokens": facts.longest_tokens,
            },
        )

    return app


def _own_version() -> str:
    """Version of the installed distribution; a checkout on the import path has none."""
    try:
        return metadata.version("tauscope")
    except metadata.PackageNotFoundError:
        return "unknown"


def _publish_store(metrics: ServiceMetrics, store: HandleStore) -> None:
    """The store, read when metrics are scraped."""
    metrics.gauge("store_bytes", "Bytes of stored states").set_function(lambda: store.facts()["bytes"])
    metrics.gauge("store_entries", "Stored handles").set_function(lambda: store.facts()["entries"])
    metrics.gauge("spill_bytes", "Bytes of files in the spill directory").set_function(
        lambda: store.facts().get("spill_bytes", 0)
    )
    metrics.counts("store_hits", "Requests whose states were stored", lambda: store.facts()["hits"])
    metrics.counts("store_misses", "Requests whose states were not stored", lambda: store.facts()["misses"])
    metrics.counts("store_evicted", "Handles that gave way to newer ones", lambda: store.facts()["evicted"])
    metrics.counts("store_leases", "Files of handles named to readers", lambda: store.facts()["leases"])
    metrics.counts("store_expired", "Handles older than the time to live", lambda: store.facts()["expired"])
