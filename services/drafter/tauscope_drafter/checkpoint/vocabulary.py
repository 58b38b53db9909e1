"""Cut draft vocabularies: from `d2t` and `t2d` to the target id of every row of the drafter's head.

`d2t` is an offset, target id = d + d2t[d]; `t2d` marks the target ids that have a row. Both
are checked against each other, because a table of the wrong kind drafts random tokens without an error.
"""

import torch
from torch import Tensor

from tauscope_wire.errors import CheckpointError, ErrorCode


def target_ids(d2t: Tensor | None, t2d: Tensor | None, *, vocab: int, draft_vocab: int, origin: str) -> Tensor | None:
    """int64 [dv], strictly ascending target ids; None when the vocabulary is whole.

    Args:
        d2t: int [dv] offsets or None.
        t2d: bool [V] or None; all false means that it was never filled in, and is treated as missing.
        vocab: V.
        draft_vocab: dv.
        origin: for messages.

    Raises:
        CheckpointError: a cut head without a table, absolute ids in `d2t`, or tables that contradict each other.
    """
    marked = _marked(t2d, vocab, origin)
    mapped = _mapped(d2t, vocab, origin)
    if marked is not None and mapped is not None and not torch.equal(marked, mapped):
        raise CheckpointError(
            f"{origin}: t2d marks {marked.numel()} target ids and d2t maps to {mapped.numel()} others; the tables "
            "contradict each other",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    ids = mapped if mapped is not None else marked
    if ids is None:
        if draft_vocab != vocab:
            raise CheckpointError(
                f"{origin}: lm_head has {draft_vocab} rows for a vocabulary of {vocab}, and neither d2t nor t2d says "
                "which tokens they are",
                ErrorCode.TENSOR_MISSING,
            )
        return None
    if ids.numel() != draft_vocab:
        raise CheckpointError(
            f"{origin}: the vocabulary tables name {ids.numel()} tokens, lm_head has {draft_vocab} rows",
            ErrorCode.TENSOR_SHAPE,
        )
    whole = draft_vocab == vocab and bool((ids == torch.arange(vocab)).all())
    return None if whole else ids


def _marked(t2d: Tensor | None, vocab: int, origin: str) -> Tensor | None:
    if t2d is None or not bool(t2d.any()):
        return None
    if t2d.ndim != 1 or t2d.numel() != vocab:
        raise CheckpointError(
            f"{origin}: tensor t2d has shape {list(t2d.shape)}, expected [{vocab}]", ErrorCode.TENSOR_SHAPE
        )
    return t2d.to(torch.bool).nonzero().flatten()


def _mapped(d2t: Tensor | None, vocab: int, origin: str) -> Tensor | None:
    if d2t is None:
        return None
    offsets = d2t.to(torch.int64).flatten()
    rows = offsets.numel()
    ids = torch.arange(rows) + offsets
    if not rows:
        raise CheckpointError(f"{origin}: tensor d2t is empty", ErrorCode.TENSOR_SHAPE)
    ascending = bool((ids.diff() > 0).all())
    if ascending and int(ids[0]) >= 0 and int(ids[-1]) < vocab:
        return ids
    if bool((offsets.diff() > 0).all()) and int(offsets[-1]) > vocab - rows:
        raise CheckpointError(
            f"{origin}: tensor d2t holds absolute target ids (last {int(offsets[-1])}); offsets are expected, target "
            "id = row + d2t[row]; subtract arange and save again",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    raise CheckpointError(
        f"{origin}: tensor d2t does not map its {rows} rows to ascending ids in 0..{vocab - 1}; it is no table of "
        "offsets"
    )
