"""The k best tokens of many rows of logits, in the project's order: logit descending, then id ascending.

`torch.topk` leaves the order of equal values open, and BF16 logits over 250 thousand ids tie often; so values and ids
are packed into one integer key, whose order is the order wanted. Packing whole rows would cost eight bytes a logit:
rows are cut into blocks first, and only the k blocks with the best maximum can hold one of the k best.
"""

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 128  # near sqrt(V / k) for V = 250k and k = 8..16, where both levels cost about the same
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
    num_rows, width = logits.shape
    wide = logits.float()
    log_mass = torch.logsumexp(wide, -1)
    num_blocks = width // BLOCK
    if num_blocks <= k:
        ids = torch.arange(width, device=logits.device).expand(num_rows, width)
        return _select(wide, ids, k, first_id, log_mass)
    body = wide[:, : num_blocks * BLOCK].view(num_rows, num_blocks, BLOCK)
    order = _keys(body.amax(-1), torch.arange(num_blocks, device=logits.device)).topk(k, -1, sorted=False).indices
    ids = (order.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(1)
    if num_blocks * BLOCK < width:
        tail = torch.arange(num_blocks * BLOCK, width, device=logits.device).expand(num_rows, -1)
        ids = torch.cat((ids, tail), 1)
    return _select(wide.gather(1, ids), ids, k, first_id, log_mass)


def _select(values: Tensor, ids: Tensor, k: int, first_id: int, log_mass: Tensor) -> TopK:
    best = _keys(values, ids).topk(k, -1, sorted=True).indices
    return TopK(ids.gather(1, best) + first_id, values.gather(1, best), log_mass)


def merge_top_k(left: TopK, right: TopK, k: int) -> TopK:
    """Join the answers of two disjoint ranges of the vocabulary."""
    ids = torch.cat((left.ids, right.ids), 1)
    logits = torch.cat((left.logits, right.logits), 1)
    log_mass = torch.logaddexp(left.log_mass, right.log_mass)
    return _select(logits, ids, min(k, ids.shape[1]), 0, log_mass)
