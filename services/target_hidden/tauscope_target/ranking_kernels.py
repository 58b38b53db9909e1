"""The Triton kernel behind `ranking`: one read of a block of logits brings each row's summary up to date.

Imported only where Triton is. Compiled once for each width of a block (a head has at most two) and dtype.
"""

# Triton's language is untyped, and a kernel takes what it takes.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: PLR0917

import torch
import triton
import triton.language as tl

from tauscope_target.ranking import MOST_FUSED, RowBlock, summary_of

WIDEST_TILE = 1024
"""Columns that a program reads at a time, where a block has as many."""
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_TAKEN = tl.constexpr(_LOWEST)  # the key of a column that is taken, or is none


@triton.jit
def _add(
    logits_ptr, next_ids_ptr, keys_ptr, peaks_ptr, masses_ptr, next_ptr, first_id, stride,
    WIDTH: tl.constexpr, KEPT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slots = keys_ptr + row * KEPT + tl.arange(0, KEPT)
    kept = tl.load(slots)  # the k best so far, in any order; the places beyond hold the highest number
    peak, mass = tl.load(peaks_ptr + row), tl.load(masses_ptr + row)
    least = tl.min(kept, 0)
    for start in range(0, WIDTH, TILE):
        column = start + tl.arange(0, TILE)
        inside = column < WIDTH
        x = tl.load(logits_ptr + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, 0))
        floor = tl.where(higher == -float("inf"), 0.0, higher)
        mass = mass * tl.exp(peak - floor) + tl.sum(tl.exp(x - floor), 0)
        peak = higher
        bits = (x + 0.0).to(tl.int32, bitcast=True)  # both zeros are one value
        ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
        keys = tl.where(inside, (ordered << 32) + (4294967295 - (first_id + column).to(tl.int64)), _TAKEN)
        best = tl.max(keys, 0)
        while best > least:
            kept = tl.where(kept == least, best, kept)
            keys = tl.where(keys == best, _TAKEN, keys)
            least, best = tl.min(kept, 0), tl.max(keys, 0)
    tl.store(slots, kept)
    tl.store(peaks_ptr + row, peak)
    tl.store(masses_ptr + row, mass)
    local = tl.load(next_ids_ptr + row) - first_id
    if (local >= 0) & (local < WIDTH):
        tl.store(next_ptr + row, tl.load(logits_ptr + row * stride + local).to(tl.float32))


class FusedRanking:
    """`ranking.Ranking` by one kernel a block; arguments as for `ranking.start_ranking`."""

    def __init__(self, next_ids: torch.Tensor, best: int) -> None:
        def full(value: float) -> torch.Tensor:
            return torch.full(next_ids.shape, value, dtype=torch.float32, device=next_ids.device)

        self._next_ids = next_ids
        self._count = best
        places = torch.arange(MOST_FUSED, device=next_ids.device)
        keys = torch.where(places < best, _LOWEST + places, _HIGHEST)  # places that differ: one is replaced at a time
        self._keys = keys.repeat(len(next_ids), 1)
        self._peaks, self._masses, self._next = full(float("-inf")), full(0.0), full(float("-inf"))

    def add(self, logits: torch.Tensor, first_id: int) -> None:
        """See `ranking.Ranking`; the last axis must be dense."""
        num_rows, width = logits.shape
        with torch.cuda.device_of(logits):  # Triton launches on the current device, which may be another
            _add[(num_rows,)](
                logits, self._next_ids, self._keys, self._peaks, self._masses, self._next, first_id,
                logits.stride(0), WIDTH=width, KEPT=MOST_FUSED, TILE=min(WIDEST_TILE, triton.next_power_of_2(width)),
            )  # fmt: skip

    def rows(self) -> RowBlock:
        """See `ranking.Ranking`."""
        keys = self._keys[:, : self._count].sort(dim=-1, descending=True).values
        return summary_of(keys, self._peaks + self._masses.log(), self._next)
