"""Attention of many anchors over one shared context and each anchor's own block.

All anchors of a batch read the same context keys; anchor p may see context keys 0..p-1 only, and sliding layers fewer
(docs/adding-a-drafter.md, Context and Windows). The softmax of a row runs over three disjoint sets of keys, computed
apart and merged by their log-sum-exp, which is exact:

    core    context keys visible to every row of the batch: no mask, one fast kernel
    fringe  context keys visible to some rows only (between the first and the last anchor; window edges): dense, masked
    own     the keys of the row's own block

So the work stays close to what one anchor at a time would need, without reading the context once per anchor. On a GPU
with Triton one kernel does all of it (`kernels.attention`), and none of the parts is made.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tauscope_drafter.network.transfer import sent
from tauscope_drafter.spec import Window

# Below this a row has no visible key in a part; finite, so that exp(-inf - floor) is 0 and not NaN.
SCORE_FLOOR = -1e30
MAX_FLASH_HEAD = 256  # largest head of the fused CUDA kernel
# Shorter cores are folded into the dense part: one kernel fewer, and the flash kernel gains nothing there.
MIN_CORE_KEYS = 32


class Part(NamedTuple):
    """Unfinished softmax over one set of keys, in float32.

    Attributes:
        values: [kv, rows, hd], sum of exp(score - peak) * v.
        mass: [kv, rows, 1], sum of exp(score - peak).
        peak: [kv, rows, 1], the largest score (or any reference value).
    """

    values: Tensor
    mass: Tensor
    peak: Tensor


class Spans(NamedTuple):
    """Which context keys each anchor of a batch sees, as the kernel reads it.

    Attributes:
        first: int32 [a], positions p of the anchors, on the device.
        end: int32 [a], one past the last visible context key, on the device.
        window: what the layer sees.
    """

    first: Tensor
    end: Tensor
    window: Window


class Visibility(NamedTuple):
    """Which context keys the rows of one batch of anchors see, for one kind of layer.

    Attributes:
        core: half-open range of keys visible to all rows.
        fringe: positions of the keys visible to some rows.
        fringe_mask: bool [a * rows, len(fringe)], None when the fringe is empty.
        own_mask: bool [rows, rows] within the block, None when the block sees itself whole.
        spans: where the fused kernel runs: all it needs; the others are then empty.
    """

    core: tuple[int, int]
    fringe: tuple[tuple[int, int], ...]
    fringe_mask: Tensor | None
    own_mask: Tensor | None
    spans: Spans | None = None


def visibility(
    anchors: Sequence[int],
    window: Window,
    *,
    offsets: Sequence[int],
    ends: Sequence[int],
    device: torch.device,
    fused: bool = False,
) -> Visibility:
    """Work out core, fringe and masks of a batch on the host, without asking the device anything.

    Args:
        anchors: positions p of the batch, ascending.
        window: what the layer sees.
        offsets: offset of each query row from p (0..B-1 for a block).
        ends: one past the last visible context key, per anchor (p for DFlash).
        device: where the masks are needed.
        fused: for the fused kernel, which needs no masks.
    """
    if fused:
        first, end = (sent(values, device).to(torch.int32) for values in (anchors, ends))
        return Visibility((0, 0), (), None, None, Spans(first, end, window))
    size = window.size
    if size is None:
        starts = [[0] * len(offsets) for _ in anchors]
    elif window.per_row:
        starts = [[max(0, p + j - size + 1) for j in offsets] for p in anchors]
    else:
        starts = [[max(0, p - size)] * len(offsets) for p in anchors]
    lowest = min(min(row) for row in starts)
    core_start = max(max(row) for row in starts)
    core_end, highest = min(ends), max(ends)
    if core_end - core_start < MIN_CORE_KEYS:
        core_start = core_end = lowest
    fringe = tuple(r for r in ((lowest, core_start), (core_end, highest)) if r[0] < r[1])
    mask = None
    if fringe:
        keys = torch.cat([torch.arange(*r) for r in fringe])
        first = torch.tensor(starts).reshape(-1, 1)
        last = torch.tensor(list(ends)).repeat_interleave(len(offsets)).reshape(-1, 1)
        mask = ((keys >= first) & (keys < last)).to(device)
    return Visibility((core_start, core_end), fringe, mask, _own_mask(window, len(offsets), device))


def _own_mask(window: Window, rows: int, device: torch.device) -> Tensor | None:
    size = window.size if window.in_block and window.per_row else None
    if not window.causal and (size is None or size >= rows):
        return None
    row, key = torch.arange(rows).unsqueeze(1), torch.arange(rows)
    mask = key <= row if window.causal else torch.ones(rows, rows, dtype=torch.bool)
    if size is not None:
        mask = mask & (row - key < size) & (key - row < size)
    return mask.to(device)


def attend(
    query: Tensor,
    context: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    *,
    sees: Visibility,
    scale: float,
) -> Tensor:
    """Attention output of every row of every anchor of a batch.

    Args:
        query: [kv, groups, a, rows, hd], rotated.
        context: keys and values [kv, T, hd], keys rotated.
        own: keys and values [kv, a, own, hd] of each anchor's block.
        sees: from `visibility`.
        scale: factor on q·k.

    Returns:
        [kv, groups, a, rows, hd] in the dtype of `query`.
    """
    if sees.spans is not None:
        from tauscope_drafter.kernels.attention import attend_fused

        return attend_fused(query, context, own, sees.spans, scale)
    kv, groups, num_anchors, rows, hd = query.shape
    # Query heads of one group read the same keys: folded into the rows, so keys are never repeated.
    flat = query.reshape(kv, groups * num_anchors * rows, hd)
    parts = [_own_part(query, *own, mask=sees.own_mask, scale=scale)]
    start, end = sees.core
    if start < end:
        parts.append(_core_part(flat, context[0][:, start:end], context[1][:, start:end], scale=scale))
    if sees.fringe:
        keys, values = (torch.cat([t[:, a:b] for a, b in sees.fringe], 1) for t in context)
        mask = None if sees.fringe_mask is None else sees.fringe_mask.repeat(groups, 1)
        parts.append(_dense_part(flat, keys, values, mask=mask, scale=scale))
    return _merge(parts).to(query.dtype).reshape(query.shape)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, *, window: int | None, scale: float) -> Tensor:
    """Ordinary causal attention of one sequence over itself (context passes of EAGLE-3, P-EAGLE and MTP).

    Args:
        query: [kv, groups, T, hd].
        key: [kv, T, hd].
        value: [kv, T, hd].
        window: a key is seen iff `q - k < window`; None for all.
        scale: factor on q·k.

    Returns:
        [kv, groups, T, hd].
    """
    kv, groups, length, _ = query.shape
    key, value = (t.unsqueeze(1).expand(kv, groups, *t.shape[1:]) for t in (key, value))
    mask = None
    if window is not None and window < length:
        distance = torch.arange(length, device=query.device).unsqueeze(1) - torch.arange(length, device=query.device)
        mask = (distance >= 0) & (distance < window)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale
    )


def _own_part(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, scale: float) -> Part:
    kv, groups, num_anchors, rows, hd = query.shape
    # [kv, a, groups * rows, hd]: one small product per anchor, shared by the heads of a group.
    folded = query.permute(0, 2, 1, 3, 4).reshape(kv, num_anchors, groups * rows, hd)
    wide = None if mask is None else mask.repeat(groups, 1)
    part = _dense_part(folded, key, value, mask=wide, scale=scale)

    def unfold(t: Tensor) -> Tensor:
        t = t.reshape(kv, num_anchors, groups, rows, -1).permute(0, 2, 1, 3, 4)
        return t.reshape(kv, groups * num_anchors * rows, -1)

    return Part(*(unfold(t) for t in part))


def _dense_part(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, scale: float) -> Part:
    """Scores written out in float32; `mask` broadcasts over [..., rows, keys]."""
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2)).mul_(scale)
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    peak = scores.amax(-1, keepdim=True).clamp_min(SCORE_FLOOR)
    weights = scores.sub_(peak).exp_()
    return Part(torch.matmul(weights, value.float()), weights.sum(-1, keepdim=True), peak)


def _core_part(query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Part:
    """Unmasked attention with its log-sum-exp from the device's fused kernel.

    The ATen operators are used because `scaled_dot_product_attention` does not return the log-sum-exp.
    """
    batched = (query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0))
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*batched, scale=scale)
    elif _has_flash(query):
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(*batched, scale=scale)[:2]
    else:
        return _dense_part(query, key, value, mask=None, scale=scale)
    lse = lse[0].float().unsqueeze(-1)
    return Part(out[0].float(), torch.ones_like(lse), lse)


def _has_flash(query: Tensor) -> bool:
    """Whether the fused CUDA kernel takes this query; older cards and odd head sizes go the dense way."""
    if query.device.type != "cuda" or query.dtype not in (torch.bfloat16, torch.float16):
        return False
    hd = query.shape[-1]
    return hd % 8 == 0 and hd <= MAX_FLASH_HEAD and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _merge(parts: Sequence[Part]) -> Tensor:
    if len(parts) == 1:
        return parts[0].values / parts[0].mass
    peak = parts[0].peak
    for part in parts[1:]:
        peak = torch.maximum(peak, part.peak)
    values = mass = None
    for part in parts:
        factor = torch.exp(part.peak - peak)
        values = part.values * factor if values is None else values.addcmul_(part.values, factor)
        mass = part.mass * factor if mass is None else mass.addcmul_(part.mass, factor)
    assert values is not None and mass is not None
    return values / mass
