"""Triton kernels behind `exact`: each rounds exactly where the functions of transformers and torch round.

Imported only where Triton is. All tensors are BF16 and contiguous unless said otherwise; `BLOCK` elements a program.
Products of two BF16 numbers are exact in float32, so a fused multiply-add cannot differ from the two operations.
"""

# Triton's language is untyped, and a kernel takes what it takes.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0917

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK = 1024
CONVOLUTION_ROWS, CONVOLUTION_CHANNELS = 32, 128
MOST_COLUMNS = 512


@triton.jit
def _silu(x):
    """Silu, x / (1 + exp(-x)), in float32 with the exponential and the division that CUDA's compiler gives torch."""
    return tl.div_rn(x, 1.0 + libdevice.exp(-x))


@triton.jit
def _rates(x_ptr, rows, inside, eps, share, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Reciprocal roots of the mean squares of rows, in the order in which torch sums: a lane of a warp has four sums,
    of every fourth number; they are joined one after another, then the lower half of the lanes with the upper one.
    """
    offsets = rows.to(tl.int64)[:, None] * WIDTH + tl.arange(0, 128)[None, :]
    sums = tl.zeros((ROWS, 128), tl.float32)
    for start in range(0, WIDTH, 128):
        x = tl.load(x_ptr + offsets + start, mask=inside, other=0.0).to(tl.float32)
        sums += x * x
    even, odd = tl.split(tl.reshape(sums, (ROWS, 32, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    total = first + second + third + fourth
    for step in tl.static_range(5):
        halves = tl.permute(tl.reshape(total, (ROWS, 2, 16 >> step)), (0, 2, 1))
        low, high = tl.split(halves)
        total = low + high
    return tl.rsqrt(tl.reshape(total, (ROWS,)) * share + eps)


@triton.jit
def _norm(
    x_ptr,
    weight_ptr,
    gate_ptr,
    out_ptr,
    n,
    eps,
    share,
    WIDTH: tl.constexpr,
    CENTRED: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (rows < n)[:, None]
    rates = _rates(x_ptr, rows, inside, eps, share, WIDTH, ROWS)[:, None]
    for start in range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        offsets = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32) * rates
        weight = tl.load(weight_ptr + columns).to(tl.float32)[None, :]
        x = x * (1.0 + weight) if CENTRED else x.to(tl.bfloat16).to(tl.float32) * weight
        if GATED:
            gate = tl.load(gate_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
            x = x.to(tl.bfloat16).to(tl.float32) * _silu(gate)
        tl.store(out_ptr + offsets, x.to(tl.bfloat16), mask=inside)


@triton.jit
def _silu_product(gate_ptr, up_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    gate = _silu(tl.load(gate_ptr + offsets, mask=mask).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(gate_ptr + offsets, (gate * up).to(tl.bfloat16), mask=mask)


@triton.jit
def _convolution(
    x_ptr, weight_ptr, out_ptr, length, channels, TAPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    base = tl.program_id(2).to(tl.int64) * length
    inside = columns < channels
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tap in tl.static_range(TAPS):
        source = rows + tap - (TAPS - 1)
        mask = ((source >= 0) & (source < length))[:, None] & inside[None, :]
        offsets = (base + source)[:, None] * channels + columns[None, :]
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + columns * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
        total += x * weight[None, :]
    out = _silu(total.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16)
    mask = (rows < length)[:, None] & inside[None, :]
    tl.store(out_ptr + (base + rows)[:, None] * channels + columns[None, :], out, mask=mask)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, is_centred: bool) -> torch.Tensor:
    """Root mean square norm of the last axis, for rows that `exact.is_sum_known`.

    Args:
        x: [..., width], BF16, any strides.
        weight: [width].
        eps: added to the mean of squares.
        is_centred: scale by 1 + weight in float32 before rounding; else by weight after it.

    Returns:
        [..., width], BF16.
    """
    return _normed(x, None, weight, eps, is_centred=is_centred)


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm of the last axis, rounded, scaled, rounded, then gated by silu in float32, for
    rows that `exact.is_sum_known`.

    Args:
        x: [..., width], BF16.
        gate: as x.
        weight: [width].
        eps: added to the mean of squares.
    """
    return _normed(x, gate, weight, eps, is_centred=False)


def silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate), rounded, times up; written over `gate`, which nobody else may hold."""
    with torch.cuda.device_of(gate):
        _silu_product[_grid(gate)](gate, up, gate.numel(), BLOCK=BLOCK)
    return gate


def convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Depthwise causal convolution, rounded, and silu.

    Args:
        x: [batch, channels, length], BF16, any strides; fastest where the channels lie together.
        weight: [channels, taps].

    Returns:
        [batch, channels, length], a view of [batch, length, channels].
    """
    rows = x.transpose(1, 2).contiguous()
    out = torch.empty_like(rows)
    batch, length, channels = rows.shape
    grid = (triton.cdiv(length, CONVOLUTION_ROWS), triton.cdiv(channels, CONVOLUTION_CHANNELS), batch)
    tile = {"TAPS": weight.shape[1], "ROWS": CONVOLUTION_ROWS, "COLUMNS": CONVOLUTION_CHANNELS}
    with torch.cuda.device_of(x):
        _convolution[grid](rows, weight.contiguous(), out, length, channels, **tile)
    return out.transpose(1, 2)


def _normed(
    x: torch.Tensor, gate: torch.Tensor | None, weight: torch.Tensor, eps: float, *, is_centred: bool
) -> torch.Tensor:
    x = x.contiguous()
    gates = x if gate is None else gate.contiguous()  # without a gate it is not read
    out = torch.empty_like(x)
    flags = {"CENTRED": is_centred, "GATED": gate is not None}
    with torch.cuda.device_of(x):
        _norm[_row_grid(x)](x, weight, gates, out, *_row_sums(x, eps), **flags, **_row_tile(x))
    return out


def _row_sums(x: torch.Tensor, eps: float) -> tuple[int, float, float]:
    """Number of rows, eps, and what a sum is multiplied with: rows over elements, divided in float32 as torch does."""
    rows = x.numel() // x.shape[-1]
    return rows, eps, float(np.float32(rows) / np.float32(x.numel()))


def _row_tile(x: torch.Tensor) -> dict[str, Any]:
    """Shape of a program's tile. Without fusion: the share of a sum, rounded, plus eps."""
    width = x.shape[-1]
    return {
        "WIDTH": width,
        "ROWS": _rows_of(width),
        "COLUMNS": min(MOST_COLUMNS, width & -width),
        "num_warps": 4,
        "enable_fp_fusion": False,
    }


def _row_grid(x: torch.Tensor) -> tuple[int]:
    width = x.shape[-1]
    return (triton.cdiv(x.numel() // width, _rows_of(width)),)


def _rows_of(width: int) -> int:
    """Rows of a program."""
    return 4 if width >= 1024 else 16


def _grid(x: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)
