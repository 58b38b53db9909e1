"""Rotary position embedding, half-split (NeoX) form, with the scalings found in drafter configurations.

Formulas as in Hugging Face `modeling_rope_utils` (default, linear, yarn, llama3); the tests compare with it.
"""

import math

import torch
from torch import Tensor

from tauscope_drafter.spec import RopeSpec

YARN_BETA_FAST = 32.0  # rotations above which a dimension is left alone; the paper's value
YARN_BETA_SLOW = 1.0  # rotations below which a dimension is fully interpolated; the paper's value


def inverse_frequencies(rope: RopeSpec) -> tuple[Tensor, float]:
    """Frequencies [dim/2] in float32 and the factor on cos and sin (1 except for yarn)."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / float(rope.parameters["factor"]), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain)
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    return plain, 1.0


def _yarn(rope: RopeSpec, plain: Tensor) -> tuple[Tensor, float]:
    given = rope.parameters
    factor = float(given["factor"])
    original = float(given["original_max_position_embeddings"])

    def dimension_of(rotations: float) -> float:
        return rope.dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = dimension_of(float(given.get("beta_fast") or YARN_BETA_FAST))
    high = dimension_of(float(given.get("beta_slow") or YARN_BETA_SLOW))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # keeps the ramp finite, as the reference does
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = (plain / factor) * ramp + plain * (1 - ramp)
    return frequencies, _yarn_attention_factor(rope, factor)


def _yarn_attention_factor(rope: RopeSpec, factor: float) -> float:
    given = rope.parameters
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if given.get("mscale") and given.get("mscale_all_dim"):
        return mscale(float(given["mscale"])) / mscale(float(given["mscale_all_dim"]))
    return mscale(1.0)


def _llama3(rope: RopeSpec, plain: Tensor) -> Tensor:
    given = rope.parameters
    factor, original = float(given["factor"]), float(given["original_max_position_embeddings"])
    low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    scaled = torch.where(wavelength > original / low, plain / factor, plain)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, scaled)


class Rotary:
    """Tables of cos and sin of one drafter, computed in float32 and cast to the compute dtype.

    Args:
        rope: base, dimension and scaling.
        device: where tables are made.
        dtype: compute dtype of queries and keys.
    """

    def __init__(self, rope: RopeSpec, device: torch.device, dtype: torch.dtype) -> None:
        frequencies, self._factor = inverse_frequencies(rope)
        self._frequencies = frequencies.to(device)
        self._dtype = dtype
        self._dim = rope.dim

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables of cos and sin, each [..., dim], for integer `positions` [...]."""
        angles = positions.to(torch.float32).unsqueeze(-1) * self._frequencies
        angles = torch.cat((angles, angles), -1)
        return (angles.cos() * self._factor).to(self._dtype), (angles.sin() * self._factor).to(self._dtype)

    def rotate(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate `x` [..., head_dim]; the tables broadcast against its leading axes."""
        cos, sin = tables
        turned, rest = (x, None) if x.shape[-1] == self._dim else (x[..., : self._dim], x[..., self._dim :])
        first, second = turned.chunk(2, -1)
        turned = turned * cos + torch.cat((-second, first), -1) * sin
        return turned if rest is None else torch.cat((turned, rest), -1)
