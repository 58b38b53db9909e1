"""The k best logits of many rows and their log-sum-exp, from one read of the logits.

Two kernels. The first reads every row once: the maximum of each block of columns, and maximum and sum of exponentials
of each stretch of blocks. The second finds the k best blocks of a row and ranks the columns of those alone; see
`tauscope_drafter.ranking` for why no other block can hold one of the k best. Order: logit descending, id ascending.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # columns a maximum is kept of; 970 maxima a row at a vocabulary of 248,320
MAX_TOP_K = 32  # the second kernel takes k steps of a reduction; larger lists go the plain way
MAX_BLOCKS = 4096  # maxima of one row that the second kernel holds at a time
_STRETCH = 16  # blocks that a program of the first kernel reads: 4,096 columns
_WARPS = 4
_USED = tl.constexpr(-2147483648)  # below the key of every float: a column that is taken, or none at all


@triton.jit
def _order(x):
    """Integers in the order of float32 values; both zeros are one value."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _reduce(
    logits, maxima, peaks, masses, width, stride, num_blocks, num_stretches,
    BLOCK: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = stretch * STRETCH + tl.arange(0, STRETCH)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + row * stride + column, mask=column < width, other=-float("inf")).to(tl.float32)
    best = tl.max(x, 1)
    tl.store(maxima + row * num_blocks + block, best, mask=block < num_blocks)
    peak = tl.max(best, 0)
    floor = tl.where(peak == -float("inf"), 0.0, peak)  # a stretch without any column that can be drafted
    mass = tl.sum(tl.sum(tl.exp(x - floor), 1), 0)
    tl.store(peaks + row * num_stretches + stretch, floor)
    tl.store(masses + row * num_stretches + stretch, mass)


@triton.jit
def _select(
    logits, maxima, ids, values, width, stride, num_blocks,
    TOP: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block, lane = tl.arange(0, BLOCKS), tl.arange(0, K)
    keys = _order(tl.load(maxima + row * num_blocks + block, mask=block < num_blocks, other=-float("inf")))
    keys = tl.where(block < num_blocks, keys, _USED)
    chosen = tl.zeros((K,), tl.int32)
    for i in range(TOP):
        best = tl.max(keys, 0)
        at = tl.min(tl.where(keys == best, block, BLOCKS), 0)
        chosen = tl.where(lane == i, at, chosen)
        keys = tl.where(block == at, _USED, keys)

    column = chosen[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_column = (column < width) & (lane[:, None] < TOP)
    x = tl.load(logits + row * stride + column, mask=is_column, other=-float("inf")).to(tl.float32)
    keys = tl.where(is_column, _order(x), _USED)
    for i in range(TOP):
        best = tl.max(tl.max(keys, 1), 0)
        at = tl.min(tl.min(tl.where(keys == best, column, width), 1), 0)
        tl.store(ids + row * TOP + i, at.to(tl.int64))
        bits = tl.where(best < 0, best ^ 0x7FFFFFFF, best)
        tl.store(values + row * TOP + i, bits.to(tl.float32, bitcast=True))
        keys = tl.where(column == at, _USED, keys)


def takes(width: int, k: int) -> bool:
    """Whether the kernels are made for rows of `width` columns and lists of `k`."""
    return k <= MAX_TOP_K and k < triton.cdiv(width, BLOCK) <= MAX_BLOCKS


def rank_fused(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k best of each row.

    Args:
        logits: [n, V], any floating dtype, the last axis dense.
        k: see `takes`.

    Returns:
        Column ids int64 [n, k], their logits float32 [n, k], and the log-sum-exp of each row float32 [n].
    """
    num_rows, width = logits.shape
    num_blocks = triton.cdiv(width, BLOCK)
    num_stretches = triton.cdiv(num_blocks, _STRETCH)

    def empty(columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(num_rows, columns, device=logits.device, dtype=dtype)

    maxima, peaks, masses = empty(num_blocks), empty(num_stretches), empty(num_stretches)
    with torch.cuda.device_of(logits):  # Triton launches on the current device, which may be another
        _reduce[(num_rows, num_stretches)](
            logits, maxima, peaks, masses, width, logits.stride(0), num_blocks, num_stretches,
            BLOCK=BLOCK, STRETCH=_STRETCH, num_warps=_WARPS,
        )  # fmt: skip
        ids, values = empty(k, torch.int64), empty(k)
        _select[(num_rows,)](
            logits, maxima, ids, values, width, logits.stride(0), num_blocks,
            TOP=k, BLOCK=BLOCK, BLOCKS=triton.next_power_of_2(num_blocks), K=triton.next_power_of_2(k),
            num_warps=_WARPS,
        )  # fmt: skip
    return ids, values, torch.logsumexp(peaks + masses.log(), -1)
