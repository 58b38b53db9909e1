"""Whether the fused kernels run here: a GPU they are made for, Triton at hand, and a result that is right.

Says no rather than raising: without the kernels the same numbers come from plain PyTorch, more slowly. What runs is in
the fingerprint of every answer.
"""

import logging
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

import torch

log = logging.getLogger(__name__)

ATTENTION_HEADS = (16, 32, 64, 128, 256)  # sizes of a head that the attention kernel is made for
# Rows times head size of one program: 64 rows of 128 take 183 registers a thread and 88 KiB of shared memory; more
# would spill, or not fit into smaller cards.
ATTENTION_ELEMENTS = 64 * 128
_DTYPES = (torch.bfloat16, torch.float16)  # in float32 the kernels' products would be rounded to tf32
_OLDEST = (8, 0)  # compute capability; older cards have no BF16 products


def has_attention(device: torch.device, dtype: torch.dtype, head_dim: int, *, rows: int) -> bool:
    """Whether attention goes through the fused kernel.

    Args:
        device: of queries and keys.
        dtype: of queries and keys.
        head_dim: size of a head.
        rows: queries of one anchor and key head: rows of its block times the query heads of a group.
    """
    padded = max(16, 1 << (rows - 1).bit_length())
    fits = head_dim in ATTENTION_HEADS and padded * head_dim <= ATTENTION_ELEMENTS
    return fits and has_kernels(device, dtype)


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether rows of `dtype` on `device` go through the fused kernels."""
    return device.type == "cuda" and dtype in _DTYPES and _proven(device, dtype)


def attention_name(device: torch.device, dtype: torch.dtype) -> str:
    """How attention is computed, for the fingerprint."""
    if not has_kernels(device, dtype):
        return "two-part"
    return f"fused (triton {version('triton')}); two-part for more than {ATTENTION_ELEMENTS} rows x head size"


@cache
def _proven(device: torch.device, dtype: torch.dtype) -> bool:
    """Compile both kernels and compare them with plain PyTorch, once per process."""
    if find_spec("triton") is None or torch.cuda.get_device_capability(device) < _OLDEST:
        return False
    from tauscope_drafter.kernels.proof import check

    try:
        check(device, dtype)
    except Exception as error:
        # no compiler on the machine, another version of Triton, a wrong result: all the same to the reader
        log.warning("the fused kernels are not used: %s", error, exc_info=error)
        return False
    return True
