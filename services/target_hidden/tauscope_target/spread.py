"""Resident weights over several devices: consecutive layers on each, the residual stream crosses between them.

The embedding lies on the first device, final norm and head on the last. Numerics are those of one device: the same
kernels on the same shapes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from tauscope_target.anatomy import Anatomy
from tauscope_target.device_memory import MemoryFacts
from tauscope_target.duty import Duty
from tauscope_target.engine import EngineParts
from tauscope_target.fitting import MOST_TOKENS
from tauscope_target.forward import DecoderRunner
from tauscope_target.layer_runs import ResidentWeights
from tauscope_target.loading import Allocate, LoadingPlan
from tauscope_target.logits import ResidentHead
from tauscope_target.memory import MIN_CHUNK_TOKENS, RESERVE_BYTES, Budget, ModelSizes, head_work_bytes
from tauscope_target.modes import ModeDecision, ModeRequest
from tauscope_wire.errors import ErrorCode, RequestError, UnavailableError


@dataclass(frozen=True)
class Spread:
    """Which device holds which layer.

    Attributes:
        devices: in the order of the layers.
        layers: number of the device of each layer, never falling.
    """

    devices: tuple[torch.device, ...]
    layers: tuple[int, ...]

    def device_of(self, layer: int) -> torch.device:
        """Where a layer runs."""
        return self.devices[self.layers[layer]]


def assign_layers(layer_bytes: Sequence[int], room: Sequence[int]) -> tuple[int, ...] | None:
    """Give consecutive layers to devices, in proportion to their room.

    Args:
        layer_bytes: of each layer.
        room: bytes for layers on each device.

    Returns:
        Number of the device of each layer, or None when they do not fit.
    """
    total, capacity = sum(layer_bytes), sum(max(0, r) for r in room)
    if total > capacity:
        return None
    assigned: list[int] = []
    device, held = 0, 0
    for size in layer_bytes:
        share = total * max(0, room[device]) / capacity
        while device + 1 < len(room) and (held + size > room[device] or held + size / 2 > share):
            device, held = device + 1, 0
            share = total * max(0, room[device]) / capacity
        if held + size > room[device]:
            return None
        held += size
        assigned.append(device)
    return tuple(assigned)


def decide_spread(
    sizes: ModelSizes, request: ModeRequest, devices: Sequence[torch.device], memories: Sequence[MemoryFacts]
) -> tuple[ModeDecision, Spread]:
    """Spread a resident model, with the largest pass that fits.

    Raises:
        RequestError: a mode or cap that only one device knows.
        UnavailableError: the model does not fit on these devices together.
    """
    if request.weights not in ("auto", "resident") or request.gpu_memory is not None:
        raise RequestError("--devices spreads a resident model: leave --weights and --gpu-memory out")
    tokens = request.pass_tokens or MOST_TOKENS
    while tokens >= MIN_CHUNK_TOKENS:
        chunk = min(request.chunk_tokens or tokens, tokens)
        work = chunk * sizes.chunk_bytes_per_token + tokens * sizes.pass_bytes_per_token
        room = [(memory.gpu_free or 0) - RESERVE_BYTES - work for memory in memories]
        room[0] -= sizes.embedding_bytes
        room[-1] -= sizes.head_bytes + head_work_bytes(sizes, "resident")
        layers = assign_layers(sizes.layer_bytes, room)
        if layers is not None:
            budget = Budget(tokens, chunk, tokens, sizes.weights_bytes + len(devices) * work, device_tokens=tokens)
            decision = ModeDecision("resident", budget, f"resident on {len(devices)} devices")
            return decision, Spread(tuple(devices), layers)
        if request.pass_tokens is not None:
            break
        tokens //= 2
    free = ", ".join(f"{(memory.gpu_free or 0) / (1 << 30):.1f}" for memory in memories)
    raise UnavailableError(
        f"{sizes.weights_bytes / (1 << 30):.1f} GiB of weights, and activations, do not fit on devices with {free} GiB "
        "free; give more devices, or stream the weights through one",
        ErrorCode.OUT_OF_MEMORY,
    )


def build_spread(
    load: Callable[[LoadingPlan], Anatomy], decision: ModeDecision, spread: Spread, *, plan: LoadingPlan, duty: Duty
) -> EngineParts:
    """Load a model over several devices and join the parts of an engine."""

    def place(anatomy: Anatomy) -> Allocate:
        prefix = f"{anatomy.layers_path}."
        embedding = next(name for name, module in anatomy.model.named_modules() if module is anatomy.embedding)

        def allocate(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            if name.startswith(prefix):
                device = spread.device_of(int(name.removeprefix(prefix).partition(".")[0]))
            elif name.startswith(f"{embedding}."):
                device = spread.devices[0]
            else:
                device = spread.devices[-1]
            return torch.empty(shape, dtype=dtype, device=device)

        return allocate

    anatomy = load(replace(plan, place=place))
    runner = DecoderRunner(
        anatomy,
        weights=ResidentWeights(),
        device=spread.devices[0],
        chunk_tokens=decision.budget.chunk_tokens,
        duty=duty,
        layer_devices=[spread.device_of(index) for index in range(len(spread.layers))],
    )
    head = None
    if anatomy.head is not None:
        is_tied = anatomy.model.config.tie_word_embeddings
        head = ResidentHead(anatomy.head, device=spread.devices[-1] if is_tied else None)
    return EngineParts(runner, head, spread.devices[0])
