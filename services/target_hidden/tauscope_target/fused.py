"""Named faster paths of the gated delta architecture. Never a default: each changes bits and enters the fingerprint.

`fused` compiles what has no kernel of its own: norms, the product of the MLP, the short convolution. Compiling whole
layers is slower and swaps the gated delta kernels for their reference in silence, so functions are compiled, not
modules. The formulas are those of transformers, with the same roundings; only sums are ordered differently.
`fla-convolution` takes fla's short convolution, which rounds elsewhere (about 3 % at the output of 27B).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.kernels import layer_scopes
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError

FUSED, FLA_CONVOLUTION = "fused", "fla-convolution"
OPTIONS = (FUSED, FLA_CONVOLUTION)

Compile = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]


def compile_function(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Compile for any shape: one kernel a function, not one a length."""
    compiled: Callable[..., torch.Tensor] = torch.compile(function, dynamic=True)
    return compiled


def apply_options(anatomy: Anatomy, options: Sequence[str], *, compiled: Compile = compile_function) -> None:
    """Switch named paths on, for the whole model.

    Args:
        anatomy: the loaded model, before its layers are observed.
        options: of `OPTIONS`.
        compiled: compiles a function; a seam for tests.

    Raises:
        RequestError: an option that does not exist, or two that exclude each other.
        MismatchError: the architecture has nothing that the option could change.
    """
    for option in options:
        if option not in OPTIONS:
            raise RequestError(f"--option {option}: the options are {', '.join(OPTIONS)}")
    scopes = [scope for scope in layer_scopes(anatomy.model) if "causal_conv1d_fn" in scope]
    if options and not scopes:
        raise MismatchError(
            f"{type(anatomy.model).__name__} has no gated delta layers: --option {options[0]} changes nothing",
            ErrorCode.NOT_SUPPORTED,
        )
    if FUSED in options:
        _fuse_modules(anatomy.model, compiled)
    if FLA_CONVOLUTION in options:
        for scope in scopes:
            scope["causal_conv1d_fn"] = fla_convolution
    elif FUSED in options:
        shifts = compiled(convolution_by_shifts)
        for scope in scopes:
            scope["causal_conv1d_fn"] = partial(causal_conv1d_fused, shifts)


def zero_centred_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm of the last axis, scaled by 1 + weight, in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * (1.0 + weight.float())).type_as(x)


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm, rounded, scaled, then gated by silu in float32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    scaled = weight * wide.to(x.dtype)
    return (scaled * torch.nn.functional.silu(gate.float())).to(x.dtype)


def silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The MLP between its matrix products."""
    return torch.nn.functional.silu(gate) * up


def convolution_by_shifts(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Depthwise causal convolution and silu: x [batch, channels, seq], weight [channels, width]."""
    width, length = weight.shape[1], x.shape[-1]
    padded = torch.nn.functional.pad(x, (width - 1, 0)).float()
    total = padded[..., :length] * weight[:, 0, None].float()
    for tap in range(1, width):
        total = total + padded[..., tap : tap + length] * weight[:, tap, None].float()
    return torch.nn.functional.silu(total.to(x.dtype))


def causal_conv1d_fused(
    shifts: Callable[..., torch.Tensor],
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor:
    """What transformers calls for the short convolution; other activations and biases do not occur in these models."""
    if bias is not None or activation != "silu":
        raise MismatchError(f"--option {FUSED}: this model's convolution has a bias or activation {activation!r}")
    return shifts(hidden_states, weight)


def fla_convolution(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor:
    """Fla's convolution behind transformers' signature: it wants [batch, seq, channels]."""
    from fla.modules.causal_conv1d import causal_conv1d

    output, _state = causal_conv1d(hidden_states.transpose(1, 2), weight, bias, activation=activation)
    turned: torch.Tensor = output.transpose(1, 2)
    return turned


def _fuse_modules(model: nn.Module, compiled: Compile) -> None:
    norm, gated, product = compiled(zero_centred_norm), compiled(gated_norm), compiled(silu_product)
    for module in model.modules():
        part: Any = module
        name = type(module).__name__
        if name.endswith("RMSNormGated"):
            part.forward = partial(_run_gated_norm, part, gated)
        elif name.endswith("RMSNorm") and _is_zero_centred(part):
            part.forward = partial(_run_norm, part, norm)
        elif name.endswith("MLP") and is_silu_gated(part):
            part.forward = partial(_run_mlp, part, product)


def is_silu_gated(mlp: Any) -> bool:
    """Whether an MLP is the product of a silu gate and an up projection."""
    has_parts = all(hasattr(mlp, part) for part in ("gate_proj", "up_proj", "down_proj"))
    return has_parts and str(getattr(mlp.config, "hidden_act", "")) == "silu"


def _is_zero_centred(norm: Any) -> bool:
    """Whether a norm scales by 1 + weight: asked of the norm itself, on rows of ones."""
    weight = norm.weight
    ones = torch.ones(2, weight.shape[0], dtype=weight.dtype, device=weight.device)
    with torch.inference_mode():
        expected = zero_centred_norm(ones, weight, norm.eps) if hasattr(norm, "eps") else None
        return expected is not None and torch.allclose(norm(ones), expected, rtol=torch.finfo(weight.dtype).eps)


def _run_norm(module: Any, norm: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return norm(x, module.weight, module.eps)


def _run_gated_norm(
    module: Any, gated: Callable[..., torch.Tensor], hidden_states: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    return gated(hidden_states, gate, module.weight, module.variance_epsilon)


def _run_mlp(module: Any, product: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = module.down_proj(product(module.gate_proj(x), module.up_proj(x)))
    return output
