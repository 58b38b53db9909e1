"""Root-mean-square norm of drafters."""

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Plain RMSNorm: float32 inside, cast back, then times the weight.

    Not the `1 + w` kind of Gemma and Qwen3.5, even where the target uses that.

    Args:
        x: [..., H], any floating dtype.
        weight: [H], in the dtype of `x`.
        eps: added to the mean square.

    Returns:
        [..., H] in the dtype of `x`.
    """
    # without the weight: the fused kernel would multiply before it casts back
    return weight * F.rms_norm(x, x.shape[-1:], None, eps)


def rms_norm_one_plus(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of the kind `1 + w` (Qwen3.5, Gemma), all in float32, cast back at the end."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * (1.0 + weight.float())).to(x.dtype)
