"""What the routes of the target service share."""

from dataclasses import dataclass

from fastapi import Request

from tauscope_serving.compute import ComputeLoop
from tauscope_serving.keys import Principal
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.quotas import Quotas
from tauscope_serving.service import note
from tauscope_target.jobs import Engine, Job, Result, Tokens
from tauscope_target.settings import TargetSettings
from tauscope_target.store import HandleStore


@dataclass(frozen=True, eq=False)
class TargetParts:
    """What the routes work with.

    Attributes:
        engine: the compute side.
        loop: runs the engine's passes.
        tokens: the tokenizer, or None.
        store: handles.
        settings: limits and budgets.
        metrics: counters.
        quotas: what keys may use.
        secret: keys the handles of this service.
    """

    engine: Engine
    loop: ComputeLoop[Job, Result]
    tokens: Tokens | None
    store: HandleStore
    settings: TargetSettings
    metrics: ServiceMetrics
    quotas: Quotas
    secret: bytes

    async def charge(self, request: Request, caller: Principal, *, num_tokens: int) -> None:
        """Count tokens against the key's quota before they are computed."""
        await self.quotas.charge_tokens(caller, num_tokens)
        self.metrics.tokens.labels(caller.name).inc(num_tokens)
        note(request, tokens=num_tokens)

    async def charge_answer(self, request: Request, caller: Principal, *, num_bytes: int) -> None:
        """Count bytes of an answer against the key's quota before they are sent."""
        await self.quotas.charge_bytes(caller, num_bytes)
        self.metrics.answer_bytes.labels(caller.name).inc(num_bytes)
        note(request, answer_bytes=num_bytes)
