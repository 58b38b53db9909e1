"""Parts shared by the drafter families: plain RMSNorm, half-split rotary embedding, Qwen3 attention and MLP."""

import torch
import torch.nn.functional as F
from deploy.demo.train.settings import DrafterShape
from torch import nn

NORM_EPS = 1e-6
INIT_STD = 0.02


class RMSNorm(nn.Module):
    """``weight * x / rms(x)``: the plain kind, float32 inside, cast back before the weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis."""
        if self.training:  # one fused kernel; inference keeps the reference rounding
            with torch.autocast(x.device.type, enabled=False):
                return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), NORM_EPS)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + NORM_EPS)
        return self.weight.to(x.dtype) * y.to(x.dtype)


def rotary(
    positions: torch.Tensor, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [..., 1, seq, head_dim] of positions [..., seq], computed in float32."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angle = positions.float()[..., None] * theta**-exponent
    angle = torch.cat((angle, angle), -1).unsqueeze(-3)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply the half-split (NeoX) rotation to [batch, heads, seq, head_dim]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] to [..., hidden]."""
        y: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Attention(nn.Module):
    """Grouped-query attention; ``width`` is the input's, ``hidden`` the output's. Query and key norms only when
    ``with_norms``.
    """

    def __init__(self, hidden: int, shape: DrafterShape, *, width: int | None = None, with_norms: bool = True) -> None:
        super().__init__()
        width = hidden if width is None else width
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, hidden, bias=False)
        if with_norms:
            self.q_norm: nn.Module = RMSNorm(shape.head_dim)
            self.k_norm: nn.Module = RMSNorm(shape.head_dim)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, width] to [batch, heads, seq, head_dim], not rotated."""
        q: torch.Tensor = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head_dim)))
        return q.transpose(1, 2)

    def keys_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, seq, width] to keys (normed, not rotated) and values [batch, kv_heads, seq, head_dim]."""
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))).transpose(1, 2)
        return k, self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Scaled dot-product attention over rotated queries and keys, projected back to [batch, seq, hidden]."""
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.head_dim**-0.5)
        out: torch.Tensor = self.o_proj(y.transpose(1, 2).flatten(-2))
        return out


def initialise(module: nn.Module, layers: int) -> None:
    """Normal weights of standard deviation 0.02, output projections scaled down by depth; norms and biases keep their
    values.
    """
    for name, parameter in module.named_parameters():
        if parameter.ndim == 2:
            is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=INIT_STD * ((2 * layers) ** -0.5 if is_output else 1.0))
