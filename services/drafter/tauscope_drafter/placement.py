"""Where the weights of a drafter go within a memory cap, and how fast each way would be. Arithmetic only, no torch.

The cap means the memory of the process as the driver reports it, CUDA context included. Embedding rows are gathered on
the host in every mode, so the table never takes device memory.
"""

from dataclasses import dataclass
from typing import Literal

from tauscope_wire.errors import ErrorCode, MismatchError

Mode = Literal["resident", "head-streamed", "streamed", "cpu"]
GPU_MODES: tuple[Mode, ...] = ("resident", "head-streamed", "streamed")

CONTEXT_BYTES = 640 << 20  # what a CUDA process takes before its first tensor: context, cuBLAS, kernels of torch
RESERVE_BYTES = 128 << 20  # left free below the cap: slack of the allocator
MIN_BATCH_ANCHORS = 8
MIN_LOGITS_ROWS = 64  # rows of logits ranked together; fewer read the head more often than they use it
USEFUL_LOGITS_ROWS, USEFUL_ANCHORS = 1024, 256  # twice as many anchors gained 1 % on an H200 (docs/benchmarks.md)
LOGITS_SHARE = 0.7  # of what is free beside the weights; the rest is for activations
LOGIT_BYTES = 12  # see head._BYTES_PER_LOGIT
MATRIX_SHARE = 0.65  # of the matrix rate: an H200 with attention in parts; 0.87 with the kernel (docs/benchmarks.md)
BYTES_PER_WEIGHT = {"cuda": 2, "cpu": 4}  # BF16 on a GPU, float32 on a CPU
PIPELINE_SLOTS = 2  # copies of a streamed weight that may be alive: the one in use and the next


@dataclass(frozen=True, slots=True)
class DrafterSizes:
    """Sizes of the drafters that are to be loaded together, in numbers and not in bytes.

    Attributes:
        parameters: of each network.
        largest_tensor: parameters of the largest tensor of a network.
        head: rows times width of the target's head.
        vocab: rows of the head.
        block: positions of a block.
        drafts: rows ranked per anchor.
        anchor_elements: activations of one anchor.
        context_elements: keys and values of one context position.
    """

    parameters: tuple[int, ...]
    largest_tensor: int
    head: int
    vocab: int
    block: int
    drafts: int
    anchor_elements: int
    context_elements: int


@dataclass(frozen=True, slots=True)
class Placement:
    """How to load.

    Attributes:
        mode: see `Mode`.
        gpu_bytes: memory of the process on the device.
        host_bytes: weights in host memory.
        logits_bytes: bound on the logits alive at once.
        batch_bytes: bound on the activations of a batch.
        drafter_bytes: room for networks on the device, None where they are streamed or there is no device.
    """

    mode: Mode
    gpu_bytes: int
    host_bytes: int
    logits_bytes: int
    batch_bytes: int
    drafter_bytes: int | None


def place(sizes: DrafterSizes, mode: Mode, cap: int | None, *, context_tokens: int = 4096) -> Placement | int:
    """The placement of a mode within a cap, or the bytes that it would need at least.

    Args:
        sizes: what is to be loaded.
        mode: where weights go.
        cap: bytes of device memory for the process; None for no cap.
        context_tokens: longest sequence whose fused context lies beside the weights.
    """
    width = BYTES_PER_WEIGHT["cpu" if mode == "cpu" else "cuda"]
    networks, head = sum(sizes.parameters) * width, sizes.head * width
    table = sizes.head * BYTES_PER_WEIGHT["cuda"]  # the embedding stays in the dtype of the file, on the host
    context = sizes.context_elements * context_tokens * width
    least_logits = MIN_LOGITS_ROWS * sizes.vocab * LOGIT_BYTES
    least_batch = MIN_BATCH_ANCHORS * sizes.anchor_elements * width
    if mode == "cpu":
        return Placement(mode, 0, networks + head + table + context + least_logits, least_logits, least_batch, None)
    on_device = context + CONTEXT_BYTES + RESERVE_BYTES
    if mode != "streamed":
        on_device += networks
    else:
        on_device += PIPELINE_SLOTS * sizes.largest_tensor * width
    if mode == "resident":
        on_device += head
    # a streamed slice of the head takes as much as the logits made of it
    factor = 1 if mode == "resident" else 2
    least = on_device + factor * least_logits + least_batch
    if cap is not None and least > cap:
        return least
    useful_logits, useful_batch = (
        USEFUL_LOGITS_ROWS * sizes.vocab * LOGIT_BYTES,
        USEFUL_ANCHORS * sizes.anchor_elements * width,
    )
    free = factor * useful_logits + useful_batch if cap is None else cap - on_device
    logits = max(least_logits, min(useful_logits, int(free * LOGITS_SHARE) // factor))
    batch = max(least_batch, min(useful_batch, free - factor * logits))
    host = table + (0 if mode == "resident" else head) + (networks if mode == "streamed" else 0)
    total = on_device + factor * logits + batch
    return Placement(mode, total, host, logits, batch, None if mode == "streamed" else networks)


def choose(sizes: DrafterSizes, cap: int | None) -> Placement:
    """The fastest mode that fits.

    Raises:
        MismatchError: none does; says what each would need.
    """
    needs = []
    for mode in GPU_MODES:
        found = place(sizes, mode, cap)
        if isinstance(found, Placement):
            return found
        needs.append(f"{mode} {found / 2**30:.2f} GiB")
    raise MismatchError(
        f"--gpu-memory {(cap or 0) / 2**30:.2f} GiB is too little: needed are {', '.join(needs)}; raise it, load fewer "
        "drafters, or use --device cpu",
        ErrorCode.OUT_OF_MEMORY,
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of a machine: pinned host to device, matrix products of device and processor."""

    bus_bytes_s: float
    gpu_flop_s: float
    cpu_flop_s: float


def seconds(sizes: DrafterSizes, mode: Mode, rates: Rates, *, anchors: int, placement: Placement | None) -> float:
    """Estimated time of `anchors` anchors of one sequence with one drafter.

    The time of the products at `MATRIX_SHARE` of the matrix rate, or of the bus where weights are streamed and it is
    slower.
    """
    network = max(sizes.parameters)
    flop = 2.0 * anchors * (sizes.block * network + sizes.drafts * sizes.head)
    if mode == "cpu":
        return flop / (rates.cpu_flop_s * MATRIX_SHARE)
    compute = flop / (rates.gpu_flop_s * MATRIX_SHARE)
    if mode == "resident" or placement is None:
        return compute
    width = BYTES_PER_WEIGHT["cuda"]
    per_batch = max(1, placement.batch_bytes // max(1, sizes.anchor_elements * width))
    batches = -(-anchors // per_batch)
    moved = sizes.head * width + (network * width if mode == "streamed" else 0)
    return max(compute, batches * moved / rates.bus_bytes_s)
