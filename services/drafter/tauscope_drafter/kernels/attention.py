"""Attention of many anchors over one context and their own blocks, as one kernel.

One program computes all rows of one key/value head of one anchor: its own block first, so that the running maximum of
every row is finite, then the context keys that the anchor sees, tile by tile, with the online softmax. Keys outside of
an anchor's window or past its end are never read, so the work is that of one anchor at a time; all anchors read the
same context, which stays in the L2 cache. A row's result does not depend on the batch that it is in.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tauscope_drafter.network.attention import Spans

_CONTEXT_TILE = 64  # keys read at a time; with 64 rows of 128 the tiles stay within registers and shared memory
_LEAST_TILE = 16  # the smallest side of a matrix product
_NUM_WARPS, _NUM_STAGES = 4, 2  # pinned: autotuning would cost minutes and may change bits
_NO_WINDOW = 1 << 30
_LOG2_E = 1.4426950408889634


@triton.jit
def _attend(
    q, ck, cv, ok, ov, out, first, end, scale,
    q_kv, q_g, q_a, q_r, c_kv, c_t, v_kv, v_t, ok_kv, ok_a, ok_t, ov_kv, ov_a, ov_t,
    rows, groups, num_own, window,
    HD: tl.constexpr, M: tl.constexpr, OWN: tl.constexpr, TILE: tl.constexpr,
    PER_ROW: tl.constexpr, CAUSAL: tl.constexpr, IN_BLOCK: tl.constexpr,
):  # fmt: skip
    anchor, head = tl.program_id(0), tl.program_id(1)
    p, stop = tl.load(first + anchor), tl.load(end + anchor)
    m, d = tl.arange(0, M), tl.arange(0, HD)
    row, group = m % rows, m // rows
    is_row = m < rows * groups
    at = head.to(tl.int64) * q_kv + group[:, None] * q_g + anchor.to(tl.int64) * q_a + row[:, None] * q_r + d[None, :]
    query = tl.load(q + at, mask=is_row[:, None], other=0.0)

    j = tl.arange(0, OWN)
    is_own = j < num_own
    ok += head * ok_kv + anchor.to(tl.int64) * ok_a
    ov += head * ov_kv + anchor.to(tl.int64) * ov_a
    own_keys = tl.load(ok + j[:, None] * ok_t + d[None, :], mask=is_own[:, None], other=0.0)
    own_values = tl.load(ov + j[:, None] * ov_t + d[None, :], mask=is_own[:, None], other=0.0)
    sees = is_own[None, :] & (m[:, None] >= 0)
    if CAUSAL:
        sees = sees & (j[None, :] <= row[:, None])
    if IN_BLOCK:
        sees = sees & (row[:, None] - j[None, :] < window) & (j[None, :] - row[:, None] < window)
    own_scores = tl.where(sees, tl.dot(query, tl.trans(own_keys)) * scale, -float("inf"))
    peak = tl.max(own_scores, 1)
    own_share = tl.exp2(own_scores - peak[:, None])
    mass = tl.sum(own_share, 1)
    acc = tl.dot(own_share.to(own_values.dtype), own_values)

    start = p + row - window + 1 if PER_ROW else p + row * 0 - window
    lowest = tl.maximum(p - window + (1 if PER_ROW else 0), 0) // TILE * TILE
    for t in range(lowest, stop, TILE):
        n = t + tl.arange(0, TILE)
        is_key = n < stop
        keys = tl.load(ck + head * c_kv + n[None, :] * c_t + d[:, None], mask=is_key[None, :], other=0.0)
        values = tl.load(cv + head * v_kv + n[:, None] * v_t + d[None, :], mask=is_key[:, None], other=0.0)
        scores = tl.dot(query, keys) * scale
        scores = tl.where(is_key[None, :] & (n[None, :] >= start[:, None]), scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        fade = tl.exp2(peak - higher)
        share = tl.exp2(scores - higher[:, None])
        mass = mass * fade + tl.sum(share, 1)
        acc = tl.dot(share.to(values.dtype), values, acc * fade[:, None])
        peak = higher
    acc = acc / mass[:, None]
    # [a, rows, kv, groups, hd]: what the output projection reads, without a copy
    at = ((anchor.to(tl.int64) * rows + row[:, None]) * tl.num_programs(1) + head) * groups + group[:, None]
    tl.store(out + at * HD + d[None, :], acc.to(out.dtype.element_ty), mask=is_row[:, None])


def attend_fused(
    query: Tensor, context: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], spans: Spans, scale: float
) -> Tensor:
    """See `network.attention.attend`.

    Args:
        query: [kv, groups, a, rows, hd], rotated; any strides, the last axis dense.
        context: keys and values [kv, T, hd].
        own: keys and values [kv, a, own, hd].
        spans: of the batch and layer.
        scale: factor on q·k.

    Returns:
        [kv, groups, a, rows, hd], a view of memory in the order a, rows, kv, groups, hd.
    """
    kv, groups, num_anchors, rows, hd = query.shape
    query, (ck, cv), (ok, ov) = _dense(query), (_dense(t) for t in context), (_dense(t) for t in own)
    out = torch.empty(num_anchors, rows, kv, groups, hd, device=query.device, dtype=query.dtype)
    window = spans.window
    arguments: Any = (
        query, ck, cv, ok, ov, out, spans.first, spans.end, scale * _LOG2_E,
        *query.stride()[:4], *ck.stride()[:2], *cv.stride()[:2], *ok.stride()[:3], *ov.stride()[:3],
        rows, groups, ok.shape[2], _NO_WINDOW if window.size is None else window.size,
    )  # fmt: skip
    with torch.cuda.device_of(query):  # Triton launches on the current device, which may be another
        _attend[(num_anchors, kv)](
            *arguments,
            HD=hd,
            M=max(_LEAST_TILE, triton.next_power_of_2(groups * rows)),
            OWN=max(_LEAST_TILE, triton.next_power_of_2(ok.shape[2])),
            TILE=_CONTEXT_TILE if hd <= 128 else _CONTEXT_TILE // 2,
            PER_ROW=window.per_row,
            CAUSAL=window.causal,
            IN_BLOCK=window.size is not None and window.in_block and window.per_row,
            num_warps=_NUM_WARPS,
            num_stages=_NUM_STAGES,
        )
    return out.permute(2, 3, 0, 1, 4)


def _dense(t: Tensor) -> Tensor:
    """The kernel steps through the last axis one by one."""
    return t if t.stride(-1) == 1 else t.contiguous()
