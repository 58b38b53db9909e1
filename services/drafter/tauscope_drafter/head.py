"""Embedding table and output head, shared by all drafters of one target.

Owns where their bytes live (on the compute device, or on the host and streamed in slices of the vocabulary) and the
bound on how many logits exist at a time. Knows nothing about drafters.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.ranking import TopK, merge_top_k, top_k

# Per logit: the product itself, its log-softmax in float32, and the correction of a sequential head.
_BYTES_PER_LOGIT = 12
# A GPU needs a thousand rows at a time to be bound by its products and not by reading the head.
CHUNK_BYTES = {"cpu": 256 << 20, "cuda": 3 << 30}
DEFAULT_CHUNK_BYTES = CHUNK_BYTES["cpu"]
# On a CPU, logits that stay in the cache are ranked twice as fast; fewer rows than this would read the head too often.
_CPU_CHUNK_BYTES = 8 << 20
_CPU_MIN_ROWS = 128
_GPU_TILE_ROWS = 256  # rows of one tile of a large product; a partly filled tile takes as long as a full one

Correction = Callable[[int, int], Tensor]
"""(first, stop) -> [n, stop - first], added to the logits of that range of the draft vocabulary."""


class Embedding:
    """Rows of the target's embedding table, delivered on the compute device in the compute dtype.

    Args:
        table: [V, H] on any device; rows are gathered where it lies, and only they travel.
        device, dtype: where and in what rows are wanted.
        scale: factor on every row.
    """

    def __init__(self, table: Tensor, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> None:
        self.table = table
        self._device, self._dtype, self._scale = device, dtype, scale

    @property
    def num_rows(self) -> int:
        """Rows of the table, V."""
        return self.table.shape[0]

    def scaled(self, scale: float) -> "Embedding":
        """The same table with another factor; the bytes are shared."""
        return Embedding(self.table, self._device, self._dtype, scale)

    def rows(self, ids: Tensor) -> Tensor:
        """[..., H] for integer ids [...]."""
        rows = F.embedding(ids.to(self.table.device), self.table).to(self._device, self._dtype)
        return rows if self._scale == 1.0 else rows * self._scale


class Head:
    """Output head with the scaling of the logits and, for cut vocabularies, the map to target ids.

    Args:
        weight: [dv, H] on any device; if not on `device`, it is streamed there slice by slice.
        device, dtype: where and in what products run.
        target_ids: int64 [dv], ascending target id of each row, or None when the vocabulary is whole.
        multiplier, softcap: applied in this order before anything is ranked.
        chunk_bytes: bound on what the logits of one step may take.
    """

    def __init__(
        self,
        weight: Tensor,
        device: torch.device,
        dtype: torch.dtype,
        *,
        target_ids: Tensor | None = None,
        multiplier: float = 1.0,
        softcap: float | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    ) -> None:
        self.weight = weight
        self.target_ids = None if target_ids is None else target_ids.to(device)
        self._device, self._dtype = device, dtype
        self._multiplier, self._softcap = multiplier, softcap
        self._chunk_bytes = chunk_bytes

    @property
    def num_rows(self) -> int:
        """Rows of the draft vocabulary, dv."""
        return self.weight.shape[0]

    def adapted(self, *, multiplier: float, softcap: float | None) -> "Head":
        """The same weight with another scaling; the bytes are shared."""
        return Head(
            self.weight,
            self._device,
            self._dtype,
            target_ids=self.target_ids,
            multiplier=multiplier,
            softcap=softcap,
            chunk_bytes=self._chunk_bytes,
        )

    def to_target(self, ids: Tensor) -> Tensor:
        """Target ids of draft ids."""
        return ids if self.target_ids is None else self.target_ids[ids]

    def logits(self, hidden: Tensor, first: int = 0, stop: int | None = None) -> Tensor:
        """[n, stop - first] scaled logits over a range of the draft vocabulary, for `hidden` [n, H]."""
        weight = self.weight[first : self.num_rows if stop is None else stop].to(self._device, self._dtype)
        return self._scale(F.linear(hidden, weight))

    def _scale(self, logits: Tensor) -> Tensor:
        if self._multiplier != 1.0:
            logits = logits * self._multiplier
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits

    def rank(self, hidden: Tensor, k: int, correction: Correction | None = None) -> TopK:
        """The k best draft ids of each row of `hidden` [n, H]; ids are draft ids, see `to_target`.

        Args:
            hidden: output of the drafter's norm.
            k: cut to dv when larger.
            correction: what a sequential head adds to the logits of all n rows.
        """
        k = min(k, self.num_rows)
        answer: TopK | None = None
        for first, stop, weight in self._slices():
            part = self._rank_slice(hidden, weight, k, first, None if correction is None else correction(first, stop))
            answer = part if answer is None else merge_top_k(answer, part, k)
        assert answer is not None
        return answer

    def _slices(self) -> Iterator[tuple[int, int, Tensor]]:
        """The head in pieces that fit on the device: one piece when it lies there."""
        if self._is_resident():
            yield 0, self.num_rows, self.weight
            return
        row_bytes = self.weight.shape[1] * torch.empty((), dtype=self._dtype).element_size()
        step = max(1, min(self.num_rows, self._chunk_bytes // row_bytes))
        for first in range(0, self.num_rows, step):
            stop = min(first + step, self.num_rows)
            yield first, stop, self.weight[first:stop].to(self._device, self._dtype, non_blocking=True)

    def _is_resident(self) -> bool:
        here, there = self.weight.device, self._device
        # "cuda" without a number means the current device, whose tensors carry the number
        same = here == there or (here.type == there.type and there.index is None)
        return same and self.weight.dtype == self._dtype

    def _rank_slice(self, hidden: Tensor, weight: Tensor, k: int, first: int, correction: Tensor | None) -> TopK:
        width = weight.shape[0]
        step = max(1, self._chunk_bytes // (width * _BYTES_PER_LOGIT))
        if self._device.type == "cpu":
            step = min(step, max(_CPU_MIN_ROWS, _CPU_CHUNK_BYTES // (width * _BYTES_PER_LOGIT)))
        elif step > _GPU_TILE_ROWS:
            step -= step % _GPU_TILE_ROWS
        parts = []
        for row in range(0, hidden.shape[0], step):
            logits = self._scale(F.linear(hidden[row : row + step], weight))
            if correction is not None:
                logits = logits + correction[row : row + step]
            parts.append(top_k(logits, min(k, width), first_id=first))
        return parts[0] if len(parts) == 1 else TopK(*(torch.cat(t) for t in zip(*parts, strict=True)))
