"""Chooses how weights are held (resident, streamed, cpu) and builds the parts of an engine accordingly."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from tauscope_serving.gpu_memory import process_bytes
from tauscope_target.anatomy import Anatomy
from tauscope_target.arithmetic import available_memory
from tauscope_target.duty import SHARED_DUTY, Duty
from tauscope_target.engine import EngineParts
from tauscope_target.forward import DecoderRunner
from tauscope_target.layer_runs import ResidentWeights
from tauscope_target.loading import Allocate, LoadingPlan
from tauscope_target.logits import ResidentHead
from tauscope_target.memory import (
    CONTEXT_BYTES,
    RESERVE_BYTES,
    Budget,
    Mode,
    ModelSizes,
    device_floor,
    fit,
)
from tauscope_target.ring import StreamedWeights
from tauscope_target.streaming import StreamedHead, StreamPlacement, host_embedding
from tauscope_wire.errors import ErrorCode, RequestError, UnavailableError

ModeChoice = Literal["auto", "resident", "streamed", "cpu"]

SHARED_ABOVE = 0.1
"""Share of a card's memory in the hands of others above which it counts as shared."""
CPU_PASS_TOKENS = 8192
CPU_CHUNK_TOKENS = 2048
"""Tokens a layer computes at once on a CPU: bounds activations; larger chunks gain nothing there."""


@dataclass(frozen=True)
class MemoryFacts:
    """What is free now.

    Attributes:
        gpu_free: bytes free on the device, or None without one.
        gpu_total: bytes of the device.
        context: bytes this process took on the device before its first tensor.
        host_available: bytes that this machine can still give.
    """

    gpu_free: int | None
    gpu_total: int
    context: int
    host_available: int | None


@dataclass(frozen=True)
class ModeRequest:
    """What the operator asked for.

    Attributes:
        weights: a mode by name, or `auto`.
        gpu_memory: most bytes that this process may take on the device, context included; None leaves it open.
        pass_tokens: tokens of a pass, or None for what fits.
        chunk_tokens: tokens a layer computes at once, or None for what fits.
        max_duty: share of time in which layers run; None is all of it on a card that nobody else uses.
    """

    weights: ModeChoice = "auto"
    gpu_memory: int | None = None
    pass_tokens: int | None = None
    chunk_tokens: int | None = None
    max_duty: float | None = None


@dataclass(frozen=True)
class ModeDecision:
    """A mode with its budget, and why."""

    mode: Mode
    budget: Budget
    reason: str


def measure(device: torch.device) -> MemoryFacts:
    """Look at the memory of the device and the machine; starts the CUDA context."""
    if device.type != "cuda":
        return MemoryFacts(None, 0, 0, available_memory())
    torch.empty(1, device=device)
    free, total = torch.cuda.mem_get_info(device)
    return MemoryFacts(free, total, CONTEXT_BYTES, available_memory())


def process_memory(device: torch.device) -> int | None:
    """Device memory of this process as the driver reports it; None where it does not (other process ids inside)."""
    return process_bytes(f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def decide(sizes: ModelSizes, request: ModeRequest, memory: MemoryFacts) -> ModeDecision:
    """Choose a mode that fits.

    Raises:
        RequestError: the mode that was asked for does not exist on this device.
        UnavailableError: nothing fits; says what each mode would need.
    """
    if memory.gpu_free is None:
        return _on_cpu(request)
    if request.weights == "cpu":
        raise RequestError("--weights cpu: give --device cpu as well")
    cap = memory.gpu_free + memory.context if request.gpu_memory is None else request.gpu_memory
    available = min(cap - memory.context - RESERVE_BYTES, memory.gpu_free - RESERVE_BYTES)
    refused = []
    for mode in _candidates(request.weights):
        budget = fit(
            sizes,
            mode,
            available,
            pass_tokens=request.pass_tokens,
            chunk_tokens=request.chunk_tokens,
        )
        needed = device_floor(sizes, mode)
        if budget is None:
            refused.append(f"{mode} needs {_gib(needed)} and activations, {_gib(max(available, 0))} are available")
        elif mode == "streamed" and memory.host_available is not None and memory.host_available < sizes.weights_bytes:
            free = _gib(memory.host_available)
            refused.append(f"streamed needs {_gib(sizes.weights_bytes)} of host memory, {free} are available")
        else:
            reason = f"{mode}: {_gib(budget.bytes)} of {_gib(available)} on the device"
            return ModeDecision(mode, budget, "; ".join([reason, *refused]))
    raise UnavailableError(
        f"no mode fits: {'; '.join(refused)}. Free device memory, raise --gpu-memory, or load less (--deepest-layer)",
        ErrorCode.OUT_OF_MEMORY,
    )


def apply_cap(request: ModeRequest, memory: MemoryFacts, device: torch.device) -> None:
    """Make torch's allocator refuse what would exceed the cap: a pass that asks for too much fails, the cap holds.

    Called before anything is loaded, with an assumption about the context; and again after the warm-up, when kernels
    and libraries are in it, with what the driver reports.
    """
    if memory.gpu_free is None or request.gpu_memory is None:
        return
    used = process_memory(device)
    context = memory.context if used is None else max(used - torch.cuda.memory_reserved(device), 0)
    allowed = max(0, request.gpu_memory - context)
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / memory.gpu_total), device)


def default_duty(memory: MemoryFacts) -> float:
    """All of the time on a card of our own, a small share on one that is in use."""
    if memory.gpu_free is None:
        return 1.0
    used_by_others = memory.gpu_total - memory.gpu_free - memory.context
    return SHARED_DUTY if used_by_others > SHARED_ABOVE * memory.gpu_total else 1.0


def build(
    load: Callable[[LoadingPlan], Anatomy], decision: ModeDecision, *, plan: LoadingPlan, duty: Duty
) -> EngineParts:
    """Load a model in the mode that was chosen and join the parts of an engine.

    Args:
        load: loads the model by a plan.
        decision: mode and budget.
        plan: dtype, device, what to load; where it is placed is decided here.
        duty: pauses between layers.
    """
    if decision.mode == "streamed":
        return _streamed(load, decision, plan=plan, duty=duty)
    anatomy = load(plan)
    chunk = decision.budget.chunk_tokens
    runner = DecoderRunner(anatomy, weights=ResidentWeights(), device=plan.device, chunk_tokens=chunk, duty=duty)
    head = ResidentHead(anatomy.head) if anatomy.head is not None else None
    return EngineParts(runner, head, plan.device)


def _streamed(
    load: Callable[[LoadingPlan], Anatomy], decision: ModeDecision, *, plan: LoadingPlan, duty: Duty
) -> EngineParts:
    placements: list[StreamPlacement] = []

    def place(anatomy: Anatomy) -> Allocate:
        placements.append(StreamPlacement(anatomy, plan))
        return placements[0].allocate

    anatomy = load(replace(plan, place=place))
    (placement,) = placements
    head: StreamedHead | None = None
    if anatomy.head is not None:
        head = StreamedHead(anatomy.head.weight, getattr(anatomy.head, "bias", None), device=plan.device)
    if plan.device.type == "cuda":
        placement.arena.register()
    runner = DecoderRunner(
        anatomy,
        weights=StreamedWeights(anatomy, placement, device=plan.device),
        device=plan.device,
        chunk_tokens=decision.budget.chunk_tokens,
        duty=duty,
        embed=host_embedding(anatomy, plan.device),
    )
    return EngineParts(runner, head, plan.device, can_generate=False)


def _on_cpu(request: ModeRequest) -> ModeDecision:
    if request.weights == "resident":
        raise RequestError("--weights resident: there is no GPU; leave it out, or give cpu")
    mode: Mode = "streamed" if request.weights == "streamed" else "cpu"
    tokens = request.pass_tokens or CPU_PASS_TOKENS
    budget = Budget(tokens, request.chunk_tokens or CPU_CHUNK_TOKENS, None, 0)
    return ModeDecision(mode, budget, f"{mode}: in host memory")


def _candidates(choice: ModeChoice) -> tuple[Mode, ...]:
    if choice == "auto":
        return ("resident", "streamed")
    return ("resident",) if choice == "resident" else ("streamed",)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB"
