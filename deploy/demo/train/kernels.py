"""GPU kernels of the hybrid target's training: a repaired backward step, pinned tuning, and their check against
float32.

flash-linear-attention 0.6.0 refuses its gated ``chunk_bwd_dqkwg`` kernel on Hopper with Triton 3.4 to 3.7.0, where it
is known to be wrong (fla issue 640). `chunk_gradients` is that one step as batched matrix products; the rest of fla's
backward stays in use. fla's autotuners would compile for minutes on a fresh machine: `pin_autotuners` keeps one
configuration of each, at no visible cost for models of this size.
"""

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch

MIDDLE_OF_THE_ROAD = {"BK": 64, "BV": 64, "BS": 64, "BD": 64, "BC": 64, "BT": 32, "B": 2048}
"""Preferred block sizes by parameter name: what fits shared memory everywhere and is never the slowest."""
PREFERRED_WARPS, PREFERRED_STAGES = 4, 2
MAX_GRADIENT_ERROR = 0.05
"""Relative; bfloat16 products give about 0.007, a wrong kernel gives order 1."""


def distance_from_middle(config: Any) -> float:
    """How far a Triton configuration is from the middle of the road; ties are left to the list's order."""
    distance: float = 2 * abs(math.log2(config.num_warps / PREFERRED_WARPS)) + 0.5 * abs(
        (config.num_stages or 2) - PREFERRED_STAGES
    )
    for name, value in config.kwargs.items():
        if name in MIDDLE_OF_THE_ROAD and isinstance(value, int):
            distance += abs(math.log2(value / MIDDLE_OF_THE_ROAD[name]))
        elif value == "ieee":
            distance += 0.1
    return distance


def pin_autotuners() -> None:
    """Make every Triton autotuner that is built from now on keep one configuration. Call before fla is first
    imported.
    """
    autotuner = importlib.import_module("triton.runtime.autotuner")

    original = autotuner.Autotuner.__init__

    def pinned(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.configs = [min(self.configs, key=distance_from_middle)]

    autotuner.Autotuner.__init__ = pinned


def chunk_gradients(  # noqa: PLR0917 - the signature is that of the kernel it replaces
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    h: torch.Tensor,
    dh: torch.Tensor,
    w: torch.Tensor,
    g: torch.Tensor,
    dv: torch.Tensor,
    scale: float | None = None,
    chunk_size: int = 64,
    state_v_first: bool = False,
    **unused: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of one gated delta-rule chunk with respect to q, k, w and the cumulative gate; a drop-in for fla's
    ``chunk_bwd_dqkwg``.

    Per chunk with incoming state ``h``, outgoing state ``h'``, corrected values ``v`` and gate ``G = 2**g`` (g
    cumulative in the chunk): ``o = scale * (G q) h + scale * tril(q k^T * 2**(g_i - g_j)) v``, ``h' = G_last h +
    (2**(g_last - g) k)^T v``, ``v = u - w h``. With the gradients of o, h' and v given, the four results follow by
    the product rule; the gate's uses ``x * dx`` sums, because every gate multiplies a whole row of q or k or the state.

    Args:
        q: Queries [batch, seq, heads, key], bfloat16 or float32; ``k`` and ``w`` alike.
        k: Keys.
        v: Corrected values [batch, seq, heads, value]; ``do`` and ``dv`` alike.
        do: Gradient of the output.
        h: State at the start of each chunk [batch, chunks, heads, key, value].
        dh: Gradient of the state at the end of each chunk, same shape.
        w: Rows that take the old state out of the values.
        g: Cumulative log2 gate [batch, seq, heads] float32.
        dv: Gradient of the corrected values.
        scale: Of the queries; ``key ** -0.5`` when None.
        chunk_size: Tokens per chunk; ``seq`` must be a multiple.
        state_v_first: Must be False.
        **unused: Arguments of the kernel that must be absent or None (variable lengths, constant gates).

    Raises:
        ValueError: For a layout that this replacement does not cover.
    """
    batch, seq, heads, key = k.shape
    if (
        seq % chunk_size
        or heads != v.shape[2]
        or state_v_first
        or any(x is not None for n, x in unused.items() if n != "chunk_indices")
    ):
        raise ValueError(
            f"seq={seq}, heads={heads}/{v.shape[2]}: only whole chunks of {chunk_size} and equal head counts "
            "are covered"
        )
    with torch.autocast(k.device.type, enabled=False):
        scale = key**-0.5 if scale is None else scale
        shape = (batch, seq // chunk_size, chunk_size, heads, -1)
        q_, k_, v_, do_, dv_ = (x.reshape(shape).transpose(2, 3).float() for x in (q, k, v, do, dv))
        gate = g.reshape(shape[:-1]).transpose(2, 3).float()  # [batch, chunks, heads, chunk]
        h_, dh_ = (x.float().view(batch, seq // chunk_size, heads, key, -1) for x in (h, dh))
        last = gate[..., -1:]
        row = torch.arange(chunk_size, device=k.device)
        relative = (gate[..., :, None] - gate[..., None, :]).masked_fill(row[:, None] < row, float("-inf")).exp2()

        d_scores = scale * relative * (do_ @ v_.mT)
        dq = scale * gate.exp2()[..., None] * (do_ @ h_.mT)
        dk = (last - gate).exp2()[..., None] * (v_ @ dh_.mT)
        dw = -(dv_ @ h_.mT)
        d_last = last[..., 0].exp2() * (h_ * dh_).sum((-1, -2)) + (dk * k_).sum((-1, -2))
        dq = dq + d_scores @ k_
        dk = dk + d_scores.mT @ q_
        dg = (dq * q_).sum(-1) - (dk * k_).sum(-1)
        dg = torch.cat((dg[..., :-1], dg[..., -1:] + d_last[..., None]), -1)

        def restore(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
            return x.transpose(2, 3).reshape(batch, seq, heads, -1).to(like.dtype)

        return restore(dq, q), restore(dk, k), restore(dw, w), dg.transpose(2, 3).reshape(batch, seq, heads)


def install_backward() -> None:
    """Let fla's gated delta rule use `chunk_gradients`."""
    from fla.ops.gated_delta_rule import chunk

    chunk.chunk_bwd_dqkwg = chunk_gradients


def gradient_error(reference: Callable[..., Any], fast: Callable[..., Any], *, device: str) -> dict[str, float]:
    """Relative error of the output and of every gradient of ``fast`` (bfloat16) against autograd through
    ``reference`` (float32).

    Both take ``(q, k, v, g=, beta=, use_qk_l2norm_in_kernel=True)`` with tensors [batch, seq, heads, size] and return
    the output first. Gates of four very different strengths are drawn, because a wrong gate gradient hides when the
    gate is nearly constant. The fast side runs, and leaves the process, with TF32 products, as training does.
    """
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    batch, seq, heads, size = 2, 256, 4, 64
    strength = torch.tensor([0.02, 0.1, 0.5, 2.0], device=device)
    inputs = [draw(batch, seq, heads, size) for _ in range(3)]
    inputs += [-draw(batch, seq, heads).abs() * 0.3 * strength, torch.sigmoid(draw(batch, seq, heads))]
    weight = draw(batch, seq, heads, size)
    results = []
    for function, dtype, precision in ((reference, torch.float32, "highest"), (fast, torch.bfloat16, "high")):
        torch.set_float32_matmul_precision(precision)
        leaves = [(x.clone() if i == 3 else x.to(dtype)).detach().requires_grad_() for i, x in enumerate(inputs)]
        out = function(*leaves[:3], g=leaves[3], beta=leaves[4], use_qk_l2norm_in_kernel=True)[0]
        out.backward(weight.to(out.dtype))
        results.append([out.detach().float(), *(leaf.grad.float() for leaf in leaves if leaf.grad is not None)])
    names = ("output", "q", "k", "v", "gate", "beta")
    return {n: round(float((b - a).norm() / a.norm()), 5) for n, a, b in zip(names, *results, strict=True)}
