"""The default arithmetic of a model in fewer passes over memory: equal bit for bit, or not used.

transformers writes norms, the gated MLP and the short convolution as chains of element-wise torch functions, each of
which reads and writes whole activations. On a GPU with Triton the links of such a chain run as one kernel that rounds
where the chain rounds and sums in the order in which torch sums. Before a replacement is used it must give the very
bits of what it replaces, on this device, on random rows and on every BF16 value of a gate. So it is no numeric mode of
its own and no part of the fingerprint; where one link differs, that chain stays as it was.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.fused import is_silu_gated
from tauscope_target.kernels import layer_scopes

TRIAL_ROWS = (16, 17, 100, 2048)
LEAST_ROWS = 16
"""Fewer rows are summed by torch in another order (several warps a row), and stay with its functions."""
LANES_WIDTH, MOST_WIDTH = 128, 8192
"""Widths of one order: multiples of what the 32 lanes of a warp take at once, up to where torch splits a row."""
TRIAL_LENGTH = 197
"""Not a multiple of any block, so that edges are tried, too."""
CONVOLUTION = "causal_conv1d_fn"


class Kernels(Protocol):
    """What `exact_kernels` offers; see there."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, is_centred: bool) -> torch.Tensor:
        """Root mean square norm."""
        ...

    def gated_norm(self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root mean square norm, gated by silu."""
        ...

    def silu_product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, over `gate`."""
        ...

    def convolution(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Depthwise causal convolution and silu."""
        ...


def load_kernels(device: torch.device, dtype: torch.dtype) -> Kernels | None:
    """The kernels, where they can run: BF16 on a GPU with Triton."""
    if device.type != "cuda" or dtype is not torch.bfloat16 or find_spec("triton") is None:
        return None
    from tauscope_target import exact_kernels

    kernels: Kernels = exact_kernels
    return kernels


def apply_exact(anatomy: Anatomy, kernels: Kernels | None, *, device: torch.device) -> list[str]:
    """Replace what is proven equal, for the whole model; before its layers are observed.

    Args:
        anatomy: the loaded model.
        kernels: from `load_kernels`; None replaces nothing.
        device: where the model runs.

    Returns:
        Names of what was replaced, for the log.
    """
    if kernels is None:
        return []
    replaced = set()
    tried: dict[tuple[Any, ...], Callable[[Any], Any] | None] = {}
    for module in anatomy.model.modules():
        part: Any = module
        name = type(module).__name__
        if name.endswith(("RMSNorm", "RMSNormGated")):
            key: tuple[Any, ...] = (type(module), tuple(part.weight.shape), part.weight.dtype)
            if key not in tried:
                tried[key] = _norm_forward(part, kernels, device)
        elif name.endswith("MLP") and is_silu_gated(part):
            key = (type(module),)
            if key not in tried:
                tried[key] = _mlp_forward(part, kernels, device)
        else:
            continue
        bind = tried[key]
        if bind is not None:
            part.forward = bind(part)
            replaced.add(name)
    for scope in layer_scopes(anatomy.model):
        found = scope.get(CONVOLUTION)
        is_there = isinstance(getattr(found, "__self__", None), ExactConvolution)  # of another engine in this process
        if found is not None and not is_there and _is_same_convolution(found, kernels, device):
            scope[CONVOLUTION] = ExactConvolution(kernels, found, device.type).causal_conv1d_exact
        if is_there or scope.get(CONVOLUTION) is not found:
            replaced.add(CONVOLUTION)
    return sorted(replaced)


@dataclass(frozen=True, eq=False)
class ExactConvolution:
    """Stands where transformers looks up its short convolution.

    Attributes:
        kernels: what computes it.
        replaced: what it was proven equal to; still computes what the kernels do not know.
        device_type: where the kernels run.
    """

    kernels: Kernels
    replaced: Callable[..., torch.Tensor]
    device_type: str

    def causal_conv1d_exact(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[batch, channels, length] to the same shape, with the signature of what it replaces."""
        is_known = bias is None and activation == "silu" and hidden_states.dtype is torch.bfloat16
        if not is_known or hidden_states.device.type != self.device_type:
            return self.replaced(hidden_states, weight, bias, activation=activation, **kwargs)
        return self.kernels.convolution(hidden_states, weight)


def _norm_forward(norm: Any, kernels: Kernels, device: torch.device) -> Callable[[Any], Any] | None:
    """What binds the replacement of a norm of this class and width, or None when none is equal."""
    eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
    if norm.weight.dtype is not torch.bfloat16 or not isinstance(eps, float):
        return None
    trial: Any = copy.deepcopy(norm)
    width = trial.weight.shape[0]
    with torch.inference_mode():
        trial.weight = nn.Parameter(_random((width,), device), requires_grad=False)
        rows = [_random((count, width), device) for count in TRIAL_ROWS]
        if not all(map(is_sum_known, rows)):
            return None
        if type(norm).__name__.endswith("Gated"):
            every = _every_value(width, device)
            pairs = [(_random(tuple(every.shape), device), every), *((x, x.flip(-1)) for x in rows)]
            same = all(same_bits(kernels.gated_norm(x, gate, trial.weight, eps), trial(x, gate)) for x, gate in pairs)
            return partial(_bind_gated, kernels, eps) if same else None
        for is_centred in (True, False):
            if all(same_bits(kernels.norm(x, trial.weight, eps, is_centred=is_centred), trial(x)) for x in rows):
                return partial(_bind_norm, kernels, eps, is_centred)
    return None


def _mlp_forward(mlp: Any, kernels: Kernels, device: torch.device) -> Callable[[Any], Any] | None:
    with torch.inference_mode():
        gate = _every_value(128, device)
        up = _random(tuple(gate.shape), device)
        expected = mlp.act_fn(gate) * up
        return partial(_bind_mlp, kernels) if same_bits(kernels.silu_product(gate, up), expected) else None


def _is_same_convolution(function: Callable[..., torch.Tensor], kernels: Kernels, device: torch.device) -> bool:
    with torch.inference_mode():
        weight = _random((320, 4), device)
        x = _random((2, TRIAL_LENGTH, 320), device).transpose(1, 2)
        return same_bits(kernels.convolution(x, weight), function(x, weight, None, activation="silu"))


def is_sum_known(x: torch.Tensor) -> bool:
    """Whether x [..., width] is BF16 whose rows torch sums in the order that the kernels know."""
    width = x.shape[-1]
    has_order = x.numel() >= LEAST_ROWS * width and width % LANES_WIDTH == 0 and width < MOST_WIDTH
    return has_order and x.stride(-1) == 1 and x.dtype is torch.bfloat16


def _bind_norm(kernels: Kernels, eps: float, is_centred: bool, module: Any) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        if not is_sum_known(x):
            return own_forward(module, x)
        return kernels.norm(x, module.weight, eps, is_centred=is_centred)

    own_forward: Callable[..., torch.Tensor] = type(module).forward
    return forward


def _bind_gated(kernels: Kernels, eps: float, module: Any) -> Callable[..., torch.Tensor]:
    def forward(hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if not is_sum_known(hidden_states):
            return own_forward(module, hidden_states, gate)
        return kernels.gated_norm(hidden_states, gate, module.weight, eps)

    own_forward: Callable[..., torch.Tensor] = type(module).forward
    return forward


def _bind_mlp(kernels: Kernels, module: Any) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = module.down_proj(kernels.silu_product(module.gate_proj(x), module.up_proj(x)))
        return output

    return forward


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _random(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Normal BF16 numbers of many magnitudes; the same every time."""
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-6, 4, shape, generator=generator))
    return values.to(device=device, dtype=torch.bfloat16)


def _every_value(width: int, device: torch.device) -> torch.Tensor:
    """All finite BF16 numbers, [rows, width], zeros at the end."""
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = patterns.view(torch.bfloat16)
    values = values[torch.isfinite(values)]
    rows = max(LEAST_ROWS, -(-len(values) // width))
    padded = torch.zeros(rows * width, dtype=torch.bfloat16)
    padded[: len(values)] = values
    return padded.view(rows, width).to(device)
