"""Triton kernels behind `exact`: each rounds exactly where the functions of transformers and torch round.

Imported only where Triton is. All tensors are BF16 and contiguous unless said otherwise; `BLOCK` elements a program.
Products of two BF16 numbers are exact in float32, so a fused multiply-add cannot differ from the two operations.
"""

# Triton's language is untyped, and a kernel takes what it takes.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0917

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK = 1024
CONVOLUTION_ROWS, CONVOLUTION_CHANNELS = 32, 128


@triton.jit
def _silu(x):
    """Silu, x / (1 + exp(-x)), in float32 with the exponential and the division that CUDA's compiler gives torch."""
    return tl.div_rn(x, 1.0 + libdevice.exp(-x))


@triton.jit
def _squares(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * x, mask=mask)


@triton.jit
def _scaled(x_ptr, rate_ptr, weight_ptr, out_ptr, n, WIDTH: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    x = x * tl.load(rate_ptr + offsets // WIDTH, mask=mask)
    weight = tl.load(weight_ptr + offsets % WIDTH, mask=mask).to(tl.float32)
    x = x * (1.0 + weight) if CENTRED else x.to(tl.bfloat16).to(tl.float32) * weight
    tl.store(out_ptr + offsets, x.to(tl.bfloat16), mask=mask)


@triton.jit
def _gated(x_ptr, rate_ptr, weight_ptr, gate_ptr, out_ptr, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    x = (x * tl.load(rate_ptr + offsets // WIDTH, mask=mask)).to(tl.bfloat16).to(tl.float32)
    weight = tl.load(weight_ptr + offsets % WIDTH, mask=mask).to(tl.float32)
    x = (weight * x).to(tl.bfloat16).to(tl.float32)
    gate = tl.load(gate_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, (x * _silu(gate)).to(tl.bfloat16), mask=mask)


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
    """Root mean square norm of the last axis.

    Args:
        x: [..., width], BF16, any strides.
        weight: [width].
        eps: added to the mean of squares.
        is_centred: scale by 1 + weight in float32 before rounding; else by weight after it.

    Returns:
        [..., width], BF16.
    """
    x = x.contiguous()
    rate = _rate(x, eps)
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _scaled[_grid(x)](x, rate, weight, out, x.numel(), WIDTH=x.shape[-1], CENTRED=is_centred, BLOCK=BLOCK)
    return out


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm of the last axis, rounded, scaled, rounded, then gated by silu in float32.

    Args:
        x: [..., width], BF16.
        gate: as x.
        weight: [width].
        eps: added to the mean of squares.
    """
    x, gate = x.contiguous(), gate.contiguous()
    rate = _rate(x, eps)
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _gated[_grid(x)](x, rate, weight, gate, out, x.numel(), WIDTH=x.shape[-1], BLOCK=BLOCK)
    return out


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


def _rate(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Reciprocal root of the mean square, float32 [..., 1]: torch's own mean, whose order of sums must be kept."""
    squares = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _squares[_grid(x)](x, squares, x.numel(), BLOCK=BLOCK)
    return torch.rsqrt(squares.mean(-1, keepdim=True) + eps)


def _grid(x: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)
