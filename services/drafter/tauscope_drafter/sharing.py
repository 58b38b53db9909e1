"""Embedding and head of one drafter: its own where it ships them, the target's copy where they are the same.

So drafters side by side share one table, and a checkpoint whose tables differ is used as it is, and said.
"""

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.reading import Description
from tauscope_drafter.checkpoint.vocabulary import target_ids
from tauscope_drafter.checkpoint.weights import read_aside
from tauscope_drafter.families.family import Shared
from tauscope_drafter.head import Embedding, Head
from tauscope_drafter.place import Place
from tauscope_wire.errors import CheckpointError, ErrorCode

# Rows compared at a time when a checkpoint's own table is held against the target's.
_COMPARED_ROWS = 4096
# BF16 keeps 8 bits of a number: copies of one table in two dtypes differ by at most half of this, relatively.
_ROUNDING = 2.0**-7


def share(description: Description, place: Place) -> tuple[Shared, tuple[str, ...], int, list[str]]:
    """Embedding and head of this drafter, what of it is the target's, the bytes it adds, and warnings."""
    spec, origin = description.spec, str(description.path)
    if description.file is None:
        nothing = torch.empty(0, 0, device=place.device, dtype=place.dtype)
        none = Embedding(nothing, place.device, place.dtype), Head(nothing, place.device, place.dtype)
        return Shared(*none, place.device, place.dtype), (), 0, []
    ids = target_ids(
        read_aside(description, "d2t"),
        read_aside(description, "t2d"),
        vocab=spec.vocab_size,
        draft_vocab=spec.draft_vocab_size,
        origin=origin,
    )
    warnings: list[str] = []
    own_bytes = 0
    theirs = place.embedding
    table = read_aside(description, "embed_tokens.weight")
    embedding = theirs
    if table is not None and (theirs is None or not _same(table, theirs.table, None, "embed_tokens", warnings)):
        embedding = Embedding(table.clone(), place.device, place.dtype)
        own_bytes += table.nbytes
    their_head = place.head
    weight = read_aside(description, "lm_head.weight")
    head = their_head if ids is None else None
    if weight is None and their_head is not None and ids is not None:
        head = Head(
            their_head.weight[ids.to(their_head.weight.device)].to(place.device),
            place.device,
            place.dtype,
            target_ids=ids,
            chunk_bytes=place.chunk_bytes,
        )
        own_bytes += head.weight.nbytes
    elif weight is not None and (
        their_head is None or not _same(weight, their_head.weight, ids, "lm_head", warnings) or ids is not None
    ):
        head = Head(
            weight.to(place.device, place.dtype, copy=True),
            place.device,
            place.dtype,
            target_ids=ids,
            chunk_bytes=place.chunk_bytes,
        )
        own_bytes += head.weight.nbytes
    if embedding is None or head is None:
        what = "embed_tokens.weight" if embedding is None else "lm_head.weight"
        raise CheckpointError(
            f"{origin}: no {what} in the checkpoint; give --target-model DIR, whose copy is shared by all drafters",
            ErrorCode.TENSOR_MISSING,
        )
    from_target = [
        n for n, mine, its in (("embed_tokens", embedding, theirs), ("lm_head", head, their_head)) if mine is its
    ]
    shared = Shared(embedding, head, place.device, place.dtype, place.final_norm, place.norm_eps)
    return shared, tuple(from_target), own_bytes, warnings


def _same(own: Tensor, theirs: Tensor, ids: Tensor | None, name: str, warnings: list[str]) -> bool:
    """Whether a checkpoint's table is the target's, in the target's dtype; says so when it differs beyond rounding."""
    if own.ndim != 2 or own.shape[1] != theirs.shape[1] or (ids is None and own.shape[0] != theirs.shape[0]):
        warnings.append(f"{name} of the checkpoint has shape {list(own.shape)}, the target's {list(theirs.shape)}")
        return False
    equal, close = True, True
    for start in range(0, own.shape[0], _COMPARED_ROWS):
        stop = min(start + _COMPARED_ROWS, own.shape[0])
        rows = theirs[start:stop] if ids is None else theirs[ids[start:stop].to(theirs.device)]
        mine = own[start:stop].to(theirs.device)
        equal = equal and torch.equal(mine.to(theirs.dtype), rows) and theirs.dtype.itemsize >= own.dtype.itemsize
        close = close and bool((mine.float() - rows.float()).abs().le(_ROUNDING * rows.float().abs() + 1e-7).all())
        if not close:
            break
    if not close:
        warnings.append(f"{name} of the checkpoint is not the target's copy and is used as it is")
    return equal and close
