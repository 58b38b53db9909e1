"""The drafters' norm against its formula, bit by bit."""

import pytest
import torch

from tauscope_drafter.network.norm import rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_computes_in_float32_and_casts_back_before_the_weight(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(5, 7, 160, generator=generator)).to(dtype)
    weight = (1 + 0.2 * torch.randn(160, generator=generator)).to(dtype)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(rms_norm(x, weight, 1e-6), weight * wide.to(dtype))
    if dtype != torch.float32:  # the weight applied before the cast rounds once and not twice: another function
        assert not torch.equal(rms_norm(x, weight, 1e-6), (weight.float() * wide).to(dtype))
