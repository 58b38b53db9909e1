"""The fused kernels against plain PyTorch on the device, small enough for a start-up."""

import torch
from torch import Tensor

from tauscope_drafter.kernels.attention import attend_fused
from tauscope_drafter.kernels.ranking import rank_fused
from tauscope_drafter.network.attention import attend, visibility
from tauscope_drafter.spec import Window

_ANCHORS = (1, 2, 63, 64, 65, 200)  # around the edges of the kernel's tiles
_LENGTH, _HEADS, _GROUPS, _BLOCK, _HD = 200, 2, 4, 16, 64
_WINDOWS = (Window(), Window(size=70, causal=True), Window(size=20), Window(size=70, per_row=False, in_block=False))
_WIDTH, _TOP = 20_000, 8
_ROUNDING = 2.0**-6  # of BF16 outputs near 1 from weights rounded to BF16; a wrong mask is off by tenths


def check(device: torch.device, dtype: torch.dtype) -> None:
    """Compare.

    Raises:
        ValueError: a kernel's result is not that of the plain way.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    num = len(_ANCHORS)
    query = random(_HEADS, _GROUPS, num, _BLOCK, _HD)
    context = random(_HEADS, _LENGTH, _HD), random(_HEADS, _LENGTH, _HD)
    own = random(_HEADS, num, _BLOCK, _HD), random(_HEADS, num, _BLOCK, _HD)
    for window in _WINDOWS:
        plain, fused = (
            visibility(_ANCHORS, window, offsets=range(_BLOCK), ends=_ANCHORS, device=device, fused=kind)
            for kind in (False, True)
        )
        assert fused.spans is not None
        expected = attend(*_widened(query, context, own), sees=plain, scale=_HD**-0.5)
        found = attend_fused(query, context, own, fused.spans, _HD**-0.5).float()
        worst = float((found - expected).abs().max())
        if not worst <= _ROUNDING * max(1.0, float(expected.abs().max())):  # also true of NaN
            raise ValueError(f"attention differs by {worst:.3g} under {window}")
    logits = torch.randint(-40, 40, (5, _WIDTH), generator=generator).to(device, dtype) / 8
    ids, values, log_mass = rank_fused(logits, _TOP)
    order = logits.float().sort(stable=True, dim=-1, descending=True)
    if not torch.equal(ids, order.indices[:, :_TOP]) or not torch.equal(values, order.values[:, :_TOP]):
        raise ValueError("the best tokens are not those of a sort")
    if not torch.allclose(log_mass, logits.float().logsumexp(-1), rtol=0, atol=1e-4):
        raise ValueError("the log-sum-exp of a row differs")


def _widened(
    query: Tensor, context: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return query.float(), (context[0].float(), context[1].float()), (own[0].float(), own[1].float())
