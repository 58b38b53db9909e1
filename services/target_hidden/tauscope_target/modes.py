"""Chooses how weights are held (resident, streamed, cpu) and builds the parts of an engine accordingly."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from tauscope_target.anatomy import Anatomy
from tauscope_target.device_memory import MemoryFacts, context_memory
from tauscope_target.duty import SHARED_DUTY, Duty
from tauscope_target.engine import EngineParts
from tauscope_target.fitting import fit
from tauscope_target.forward import DecoderRunner
from tauscope_target.layer_runs import ResidentWeights
from tauscope_target.loading import Allocate, LoadingPlan
from tauscope_target.logits import ResidentHead
from tauscope_target.memory import (
    KEPT_FREE_BYTES,
    RESERVE_BYTES,
    Budget,
    Mode,
    ModelSizes,
    device_floor,
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
    available = memory.gpu_free - memory.context_to_come - RESERVE_BYTES
    if request.gpu_memory is not None:
        available = min(available, request.gpu_memory - memory.context - RESERVE_BYTES)
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
            if mode == "streamed":
                reason += f", {_gib(budget.ring_bytes)} of them weights under way"
            return ModeDecision(mode, budget, "; ".join([reason, *refused]))
    raise UnavailableError(
        f"no mode fits: {'; '.join(refused)}. Free device memory, raise --gpu-memory, or load less (--deepest-layer)",
        ErrorCode.OUT_OF_MEMORY,
    )


def apply_bound(request: ModeRequest, memory: MemoryFacts, device: torch.device) -> None:
    """Make torch's allocator refuse what would exceed the bound: a pass that asks for too much fails, the bound holds.

    Called before anything is loaded, with an assumption about the context; and again after the warm-up, when kernels
    and libraries are in it, with what the driver reports.
    """
    if memory.gpu_free is not None:
        allowed = tensor_bound(request, memory, context=context_memory(device))
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / memory.gpu_total), device)


def tensor_bound(request: ModeRequest, memory: MemoryFacts, *, context: int | None) -> int:
    """Most bytes of tensors: some of what was free stays free, and a cap is never exceeded.

    Args:
        request: with the cap, if there is one.
        memory: before anything was loaded; on a device.
        context: what the process takes beside tensors by now, or None where the driver does not tell.
    """
    assert memory.gpu_free is not None
    allowed = memory.gpu_free - memory.context_to_come - KEPT_FREE_BYTES
    if request.gpu_memory is not None:
        allowed = min(allowed, request.gpu_memory - max(memory.context, context or 0))
    return max(0, allowed)


def settle(sizes: ModelSizes, request: ModeRequest, decision: ModeDecision, *, context: int) -> Budget:
    """The budget of a decision when the process turns out to take `context` bytes beside its tensors.

    Raises:
        UnavailableError: the cap leaves no room for a pass.
    """
    if request.gpu_memory is None or decision.mode == "cpu":
        return decision.budget
    available = request.gpu_memory - context - RESERVE_BYTES
    budget = fit(
        sizes,
        decision.mode,
        available,
        pass_tokens=request.pass_tokens,
        chunk_tokens=request.chunk_tokens,
        ring=decision.budget.ring,
    )
    if budget is None:
        raise UnavailableError(
            f"--gpu-memory {_gib(request.gpu_memory)}: {_gib(context)} are taken by the CUDA context and libraries, "
            f"which leaves too little for a pass; give {_gib(context + RESERVE_BYTES + decision.budget.bytes)}",
            ErrorCode.OUT_OF_MEMORY,
        )
    return budget


def default_duty(memory: MemoryFacts) -> float:
    """All of the time on a card of our own, a small share on one that is in use."""
    if memory.gpu_free is None:
        return 1.0
    used_by_others = memory.gpu_total - memory.gpu_free - (memory.context - memory.context_to_come)
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
    runner = DecoderRunner(
        anatomy,
        weights=ResidentWeights(),
        device=plan.device,
        chunk_tokens=decision.budget.chunk_tokens,
        device_tokens=decision.budget.device_tokens,
        long_chunk_tokens=decision.budget.long_chunk_tokens,
        duty=duty,
    )
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
        weights=StreamedWeights(anatomy, placement, device=plan.device, shape=decision.budget.ring),
        device=plan.device,
        chunk_tokens=decision.budget.chunk_tokens,
        device_tokens=decision.budget.device_tokens,
        long_chunk_tokens=decision.budget.long_chunk_tokens,
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
