"""The best tokens, the log-sum-exp and one chosen logit of many rows, from blocks of the vocabulary that come in turn.

A row's k best are exact and deterministic, ties included (logit descending, id ascending): each logit becomes a 64-bit
key whose upper half orders as the float does and whose lower half prefers small ids, and keys are unique. On a GPU with
Triton one kernel takes a whole block (`ranking_kernels`); elsewhere operators of torch do, with the same ids.
"""

import logging
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch

log = logging.getLogger(__name__)

MOST_FUSED = 64
"""Places of the kernel's list, a power of two; longer lists go through torch."""
_LOW = (1 << 32) - 1
_TRIAL_BLOCKS = (1000, 3000, 37)
_TRIAL_ROWS, _TRIAL_BEST = 5, 8
_TRIAL_TOLERANCE = 1e-4
"""float32 sums of a few thousand exponentials, in other orders."""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Summary of r rows: ids int32 and logprobs float32 [r, k], next_logprobs float32 [r]."""

    ids: torch.Tensor
    logprobs: torch.Tensor
    next_logprobs: torch.Tensor

    def cpu(self) -> "RowBlock":
        """The same in host memory."""
        return RowBlock(self.ids.cpu(), self.logprobs.cpu(), self.next_logprobs.cpu())

    def part(self, start: int, count: int) -> "RowBlock":
        """Some of the rows, as views."""
        rows = slice(start, start + count)
        return RowBlock(self.ids[rows], self.logprobs[rows], self.next_logprobs[rows])


class Ranking(Protocol):
    """What is known of the rows so far."""

    def add(self, logits: torch.Tensor, first_id: int) -> None:
        """Take a block.

        Args:
            logits: [r, block], any floating dtype.
            first_id: id of its first column; blocks come in the order of ids.
        """
        ...

    def rows(self) -> RowBlock:
        """The summary, once every block was taken."""
        ...


def start_ranking(next_ids: torch.Tensor, best: int, dtype: torch.dtype) -> Ranking:
    """Begin.

    Args:
        next_ids: int64 [r], the id of each row whose log-prob is wanted; on the device of the logits.
        best: ids to keep per row, 1 to the size of the vocabulary.
        dtype: of the logits.
    """
    if best <= MOST_FUSED and _has_kernel(next_ids.device, dtype):
        from tauscope_target.ranking_kernels import FusedRanking

        return FusedRanking(next_ids, best)
    return PlainRanking(next_ids, best)


class PlainRanking:
    """`Ranking` by operators of torch; arguments as for `start_ranking`."""

    def __init__(self, next_ids: torch.Tensor, best: int) -> None:
        self._next_ids = next_ids
        self._count = best
        self._best: torch.Tensor | None = None
        self._log_sum: torch.Tensor | None = None
        self._next = torch.full(next_ids.shape, float("-inf"), dtype=torch.float32, device=next_ids.device)

    def add(self, logits: torch.Tensor, first_id: int) -> None:
        """See `Ranking`."""
        logits = logits.float()
        log_sum = torch.logsumexp(logits, dim=-1)
        self._log_sum = log_sum if self._log_sum is None else torch.logaddexp(self._log_sum, log_sum)
        local = self._next_ids - first_id
        inside = (local >= 0) & (local < logits.shape[1])
        picked = logits.gather(1, local.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        self._next = torch.where(inside, picked, self._next)
        keys = _keys(logits, first_id)
        keys = keys.topk(min(self._count, keys.shape[1]), dim=-1).values
        best = keys if self._best is None else torch.cat([self._best, keys], dim=-1)
        self._best = best.topk(min(self._count, best.shape[1]), dim=-1).values

    def rows(self) -> RowBlock:
        """See `Ranking`."""
        assert self._best is not None and self._log_sum is not None
        return summary_of(self._best, self._log_sum, self._next)


def summary_of(keys: torch.Tensor, log_sum: torch.Tensor, next_logits: torch.Tensor) -> RowBlock:
    """Ids and log-probs.

    Args:
        keys: int64 [r, k], descending.
        log_sum: float32 [r].
        next_logits: float32 [r].
    """
    ids = (_LOW - (keys & _LOW)).to(torch.int32)
    ordered = (keys >> 32).to(torch.int32)
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    return RowBlock(ids, bits.view(torch.float32) - log_sum[:, None], next_logits - log_sum)


def _keys(logits: torch.Tensor, first_id: int) -> torch.Tensor:
    """int64 keys that order by (logit, -id). Adding zero turns -0.0 into 0.0, which must tie with it."""
    bits = (logits + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    ids = torch.arange(first_id, first_id + logits.shape[1], device=logits.device)
    return (ordered << 32) + (_LOW - ids)


@cache
def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel runs here and gives what torch gives; tried once in a process, at its first logits."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        _try_kernel(device, dtype)
    except torch.OutOfMemoryError:
        raise  # says nothing about the kernel
    except Exception as error:
        # no compiler on the machine, another version of Triton, a wrong result: all the same to the reader
        log.warning("logits are ranked by operators of torch, more slowly: %s", error, exc_info=error)
        return False
    return True


def _try_kernel(device: torch.device, dtype: torch.dtype) -> None:
    """Compare the two on logits with many ties.

    Raises:
        ValueError: they differ.
    """
    from tauscope_target.ranking_kernels import FusedRanking

    generator = torch.Generator().manual_seed(0)
    width = sum(_TRIAL_BLOCKS)
    logits = (torch.randint(-40, 40, (_TRIAL_ROWS, width), generator=generator) / 8).to(device, dtype)
    next_ids = torch.randint(0, width, (_TRIAL_ROWS,), generator=generator).to(device)
    plain, fused = PlainRanking(next_ids, _TRIAL_BEST), FusedRanking(next_ids, _TRIAL_BEST)
    start = 0
    for count in _TRIAL_BLOCKS:
        for ranking in (plain, fused):
            ranking.add(logits[:, start : start + count], start)
        start += count
    expected, found = plain.rows(), fused.rows()
    if not torch.equal(found.ids, expected.ids):
        raise ValueError("the best tokens differ")
    for ours, theirs in ((found.logprobs, expected.logprobs), (found.next_logprobs, expected.next_logprobs)):
        if not torch.allclose(ours, theirs, rtol=0, atol=_TRIAL_TOLERANCE):
            raise ValueError("log-probs differ")
