"""The attention function of the service: transformers' SDPA, and correct for a chunk that follows earlier ones.

transformers calls SDPA with `is_causal=True` when it is given no mask; torch aligns that triangle to the top left,
which is wrong as soon as there are more keys than queries. Here such a call becomes the lower-right triangle, which
the GPU kernels know without a mask in memory (8k queries on 128k keys would need a gigabyte of it).
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "tauscope_sdpa"


def register() -> None:
    """Make the function known to transformers under `NAME`; safe to repeat."""
    AttentionInterface.register(NAME, causal_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def causal_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the last queries of a sequence over all its keys.

    Args:
        module: the attention layer; its `num_key_value_groups` is read.
        query: [batch, heads, q, dim], the last q of kv positions.
        key: [batch, kv_heads, kv, dim].
        value: [batch, kv_heads, kv, dim].
        attention_mask: passed on as it is when given.
        **kwargs: `scaling`, `dropout` and others, as transformers gives them.

    Returns:
        [batch, q, heads, dim], and None for the weights, as transformers expects.
    """
    num_queries, num_keys = query.shape[2], key.shape[2]
    if attention_mask is not None or num_queries in (1, num_keys):
        result, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return result, None
    groups = int(getattr(module, "num_key_value_groups", 1))
    grouped = groups > 1 and query.is_cuda and key.shape[-1] <= 256
    if groups > 1 and not grouped:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    if not query.is_cuda:  # GPU kernels read keys where they lie: views into the buffers of a pass, half a gigabyte
        key, value = key.contiguous(), value.contiguous()
    out = torch.nn.functional.scaled_dot_product_attention(
        query.contiguous(),
        key,
        value,
        attn_mask=_lower_right(num_queries, num_keys, query.device),
        scale=kwargs.get("scaling"),
        enable_gqa=grouped,
    )
    return out.transpose(1, 2).contiguous(), None


def _lower_right(num_queries: int, num_keys: int, device: torch.device) -> torch.Tensor:
    """The triangle that lets query i see keys up to num_keys - num_queries + i: a marker for the GPU kernels, a mask
    for the CPU, whose kernels have no marker (and importing it would load the compiler).
    """
    if device.type == "cuda":
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(num_queries, num_keys)
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
