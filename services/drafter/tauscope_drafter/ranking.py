"""The k best tokens of many rows of logits, in the project's order: logit descending, then id ascending.

`torch.topk` leaves the order of equal values open, and BF16 logits over 250 thousand ids tie often; so values and ids
are packed into one integer key, whose order is the order wanted. Packing whole rows would cost eight bytes a logit:
rows are cut into blocks first, and only the k blocks with the best maximum can hold one of the k best. On a GPU with
Triton two kernels do the same from one read of the logits (`kernels.ranking`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tauscope_drafter.kernels.availability import has_kernels

MIN_BLOCK, MAX_BLOCK = 16, 256
_ID_BITS = 32


class TopK(NamedTuple):
    """The best tokens of n rows.

    Attributes:
        ids: int64 [n, k].
        logits: float32 [n, k], descending; equal logits are in ascending order of id.
        log_mass: float32 [n], log-sum-exp of the whole row.
    """

    ids: Tensor
    logits: Tensor
    log_mass: Tensor

    @property
    def logprobs(self) -> Tensor:
        """float32 [n, k]."""
        return self.logits - self.log_mass.unsqueeze(-1)


def _keys(logits: Tensor, ids: Tensor) -> Tensor:
    """Integers whose descending order is (logit descending, id ascending)."""
    bits = logits.float().add(0.0).contiguous().view(torch.int32)  # adding 0 turns -0.0 into 0.0: they are equal
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    return (ordered << _ID_BITS) - ids


def top_k(logits: Tensor, k: int, *, first_id: int = 0) -> TopK:
    """The k best of each row.

    Args:
        logits: [n, V], any floating dtype; -inf marks what cannot be drafted.
        k: at most V.
        first_id: id of column 0.

    Returns:
        `TopK`, its log-mass computed in float32.
    """
    if has_kernels(logits.device, logits.dtype):
        from tauscope_drafter.kernels.ranking import rank_fused, takes

        if takes(logits.shape[1], k):
            ids, values, log_mass = rank_fused(logits, k)
            return TopK(ids + first_id, values, log_mass)
    return plain_top_k(logits, k, first_id=first_id)


def plain_top_k(logits: Tensor, k: int, *, first_id: int = 0) -> TopK:
    """`top_k` on any device, by operators of PyTorch alone."""
    num_rows, width = logits.shape
    # One fused kernel from any dtype to float32; subtracting and summing apart would write the rows twice more.
    logprobs = torch.log_softmax(logits, -1, dtype=torch.float32)
    block = block_size(width, k)
    num_blocks = width // block
    if num_blocks <= k:
        ids = torch.arange(width, device=logits.device).expand(num_rows, width)
        return _ranked(logits, ids, k, logprobs, first_id)
    body = logits[:, : num_blocks * block].view(num_rows, num_blocks, block)
    order = _keys(body.amax(-1), torch.arange(num_blocks, device=logits.device)).topk(k, -1, sorted=False).indices
    ids = (order.unsqueeze(-1) * block + torch.arange(block, device=logits.device)).flatten(1)
    if num_blocks * block < width:
        tail = torch.arange(num_blocks * block, width, device=logits.device).expand(num_rows, -1)
        ids = torch.cat((ids, tail), 1)
    return _ranked(logits.gather(1, ids), ids, k, logprobs, first_id)


def block_size(width: int, k: int) -> int:
    """Power of two near sqrt(V / k): there the V / b maxima and the k * b candidates cost about the same."""
    block = MIN_BLOCK
    while block < MAX_BLOCK and block * block * k < width:
        block *= 2
    return block


def _ranked(values: Tensor, ids: Tensor, k: int, logprobs: Tensor, first_id: int) -> TopK:
    chosen, logits = _select(values.float(), ids, k)
    log_mass = logits[:, 0] - logprobs.gather(1, chosen[:, :1]).squeeze(1)
    return TopK(chosen + first_id, logits, log_mass)


def _select(values: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and values of the k best, in order."""
    best = _keys(values, ids).topk(k, -1, sorted=True).indices
    return ids.gather(1, best), values.gather(1, best)


def merge_top_k(left: TopK, right: TopK, k: int) -> TopK:
    """Join the answers of two disjoint ranges of the vocabulary."""
    ids = torch.cat((left.ids, right.ids), 1)
    logits = torch.cat((left.logits, right.logits), 1)
    log_mass = torch.logaddexp(left.log_mass, right.log_mass)
    return TopK(*_select(logits, ids, min(k, ids.shape[1])), log_mass)
