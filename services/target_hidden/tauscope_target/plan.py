"""The resource calculus before anything is loaded: what each mode needs, whether it fits, how fast it would be.

Pure arithmetic over a configuration and tensor headers; times are estimates from rates that are given or measured.
"""

from dataclasses import dataclass

from tauscope_target.fitting import fit_cap, overlapped
from tauscope_target.memory import CONTEXT_BYTES, RESERVE_BYTES, Mode, ModelSizes, device_floor

MATRIX_SHARE = 0.81
"""Share of the matrix rate that a pass reaches: the rest is norms, copies and short kernels (measured on one H200)."""
BFLOAT16_CPU_COST = 5
"""BF16 matrix products on a CPU without AMX against float32 (measured)."""
GIB = 1 << 30


@dataclass(frozen=True)
class Rates:
    """Speed of a machine.

    Attributes:
        bus_bytes_s: pinned host memory to device, bytes a second.
        gpu_flop_s: matrix products of the device.
        cpu_flop_s: matrix products of the processor.
    """

    bus_bytes_s: float
    gpu_flop_s: float
    cpu_flop_s: float


@dataclass(frozen=True)
class Limits:
    """What may be used: bytes of device memory (None: no device), and bytes of host memory."""

    gpu_bytes: int | None
    host_bytes: int | None


@dataclass(frozen=True)
class ModePlan:
    """One mode.

    Attributes:
        mode: its name.
        fits: whether it can be used within the limits.
        why: what is missing, or what bounds it.
        gpu_bytes: memory of the process on the device at this pass, context included.
        host_bytes: weights in host memory, buffers apart.
        pinned_bytes: of it, pinned.
        pass_tokens: largest pass.
        longest_tokens: longest prompt, its residual stream in host memory; None where memory does not bound it.
        s_per_1k_tokens: seconds for 1000 tokens in full passes.
        s_per_small_pass: seconds for a pass of one short prompt.
        chunk_tokens: tokens that a layer computes at once in a full pass; 0 where that is not planned.
        weights_on_gpu_bytes: weights that are on the device at once.
    """

    mode: Mode
    fits: bool
    why: str
    gpu_bytes: int
    host_bytes: int
    pinned_bytes: int
    pass_tokens: int
    longest_tokens: int | None
    s_per_1k_tokens: float | None
    s_per_small_pass: float | None
    chunk_tokens: int = 0
    weights_on_gpu_bytes: int = 0


def answer_bytes_per_token(sizes: ModelSizes, num_planes: int, itemsize: int = 2) -> int:
    """Bytes of an answer per position."""
    return num_planes * sizes.hidden * itemsize


def plan_modes(sizes: ModelSizes, limits: Limits, rates: Rates, *, deepest_layer: int | None = None) -> list[ModePlan]:
    """All modes, best first.

    Args:
        sizes: of what would be loaded.
        limits: what may be used.
        rates: speed of the machine.
        deepest_layer: last layer that requests will ask for; layers above it do not run.
    """
    ran = sizes.layer_bytes[: None if deepest_layer is None else deepest_layer + 1]
    flop_per_token = 2 * sum(ran) / sizes.itemsize
    return [
        _on_gpu("resident", sizes, limits, rates, ran_bytes=sum(ran)),
        _on_gpu("streamed", sizes, limits, rates, ran_bytes=sum(ran)),
        _on_cpu(sizes, limits, rates, flop_per_token),
    ]


def _on_gpu(mode: Mode, sizes: ModelSizes, limits: Limits, rates: Rates, *, ran_bytes: int) -> ModePlan:
    host = sizes.weights_bytes if mode == "streamed" else 0
    tied_head = sizes.embedding_bytes if sizes.has_head and not sizes.head_bytes else 0
    pinned = sum(sizes.layer_bytes) + sizes.head_bytes + tied_head if mode == "streamed" else 0
    least = device_floor(sizes, mode) + CONTEXT_BYTES + RESERVE_BYTES
    if limits.gpu_bytes is None:
        return _refused(mode, "there is no GPU", least, host, pinned)
    budget = fit_cap(sizes, mode, limits.gpu_bytes)
    if budget is None:
        return _refused(
            mode,
            f"needs {least / GIB:.1f} GiB and activations, {limits.gpu_bytes / GIB:.1f} may be used",
            least,
            host,
            pinned,
        )
    if limits.host_bytes is not None and host > limits.host_bytes:
        why = f"needs {host / GIB:.1f} GiB of host memory, {limits.host_bytes / GIB:.1f} may be used"
        return _refused(mode, why, least, host, pinned)
    compute_s = 2 * ran_bytes / sizes.itemsize / (rates.gpu_flop_s * MATRIX_SHARE)
    floor_s = ran_bytes / rates.bus_bytes_s if mode == "streamed" else 0.0
    pass_s = overlapped(budget.ring, sizes, copy=floor_s, compute=budget.pass_tokens * compute_s)
    bound = "matrix products" if budget.pass_tokens * compute_s > floor_s else "the bus"
    return ModePlan(
        mode=mode,
        fits=True,
        why=f"bound by {bound}",
        gpu_bytes=budget.bytes + CONTEXT_BYTES,
        host_bytes=host,
        pinned_bytes=pinned,
        pass_tokens=budget.pass_tokens,
        longest_tokens=budget.longest_tokens,
        s_per_1k_tokens=pass_s / budget.pass_tokens * 1000,
        s_per_small_pass=overlapped(budget.ring, sizes, copy=floor_s, compute=500 * compute_s),
        chunk_tokens=budget.chunk_tokens,
        weights_on_gpu_bytes=budget.ring_bytes or sizes.weights_bytes,
    )


def _on_cpu(sizes: ModelSizes, limits: Limits, rates: Rates, flop_per_token: float) -> ModePlan:
    """float32 where it fits, else BF16 weights and products."""
    small, large = sizes.weights_bytes, sizes.weights_bytes * 4 // sizes.itemsize
    allowed = limits.host_bytes
    if allowed is not None and small > allowed:
        why = f"needs {small / GIB:.1f} GiB of host memory, {allowed / GIB:.1f} may be used"
        return _refused("cpu", why, 0, small, 0)
    is_float32 = allowed is None or large <= allowed
    token_s = flop_per_token / rates.cpu_flop_s * (1 if is_float32 else BFLOAT16_CPU_COST)
    precision = "float32" if is_float32 else "BF16, slow on a CPU without AMX"
    why = f"bound by the processor, in {precision}; reference kernels for linear attention"
    host = large if is_float32 else small
    return ModePlan("cpu", True, why, 0, host, 0, 8192, None, token_s * 1000, token_s * 500)


def _refused(mode: Mode, why: str, gpu_bytes: int, host: int, pinned: int) -> ModePlan:
    return ModePlan(mode, False, why, gpu_bytes, host, pinned, 0, None, None, None)
