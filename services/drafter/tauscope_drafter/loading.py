"""From a described checkpoint to a drafter that runs: tensors on the device, embedding and head from where they are.

A checkpoint's own embedding and head are used when it ships them; where they equal the target's bit for bit, the
target's copy is used and theirs is dropped, so that drafters side by side share one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.reading import Description, describe
from tauscope_drafter.checkpoint.vocabulary import target_ids
from tauscope_drafter.checkpoint.weights import WeightsHash, read_aside, read_tensors
from tauscope_drafter.families.family import Network, Shared, Weights
from tauscope_drafter.fit import DrafterSide, TargetSide, check_fit
from tauscope_drafter.head import CHUNK_BYTES, DEFAULT_CHUNK_BYTES, Embedding, Head
from tauscope_drafter.spec import DrafterSpec
from tauscope_drafter.streamed_weights import StreamedWeights
from tauscope_drafter.target_weights import TargetFolder
from tauscope_wire.errors import CheckpointError, ErrorCode

# Rows compared at a time when a checkpoint's own table is held against the target's.
_COMPARED_ROWS = 4096
# BF16 keeps 8 bits of a number: copies of one table in two dtypes differ by at most half of this, relatively.
_ROUNDING = 2.0**-7


@dataclass(frozen=True, slots=True)
class Place:
    """Where a drafter computes, and the target's weights that it may share.

    Attributes:
        device, dtype: of all products.
        target: the target's checkpoint, None when only drafters with tables of their own are loaded.
        embedding, head: of the target, None without one.
        final_norm: of the target as it multiplies, None without one.
        norm_eps: of the target's final norm.
        chunk_bytes: bound on the logits alive at once.
        stream_networks: keep the networks' weights on the host and copy them when they are read.
    """

    device: torch.device
    dtype: torch.dtype
    target: TargetFolder | None = None
    embedding: Embedding | None = None
    head: Head | None = None
    final_norm: Tensor | None = None
    norm_eps: float = 1e-6
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    stream_networks: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A drafter ready to draft.

    Attributes:
        network: see `families.family.Network`.
        spec: its description.
        sha256: over the weights of the network, equal in all formats.
        num_parameters: of the network.
        memory_bytes: what it holds beyond what is shared.
        from_target: what it takes from the target.
        evidence: why this family, format and layout.
        path: where it came from.
        rebuild: a network of the same weights by another description.
    """

    network: Network
    spec: DrafterSpec
    sha256: str
    num_parameters: int
    memory_bytes: int
    from_target: tuple[str, ...]
    evidence: tuple[str, ...]
    path: Path
    rebuild: Callable[[DrafterSpec], Network]


def open_place(
    device: torch.device,
    dtype: torch.dtype,
    target: Path | None,
    *,
    chunk_bytes: int | None = None,
    head_on_host: bool = False,
    stream_networks: bool = False,
) -> Place:
    """Read the target's embedding, head and final norm once.

    Args:
        device: of all computation.
        dtype: of all computation.
        target: folder of the target's checkpoint, or None.
        chunk_bytes: bound on the logits alive at once; None chooses by device.
        head_on_host: keep the head on the host and stream it (a GPU without room for it).
        stream_networks: the same for the weights of the drafters.

    Raises:
        CheckpointError: the folder is no checkpoint of a decoder-only model.
    """
    chunk_bytes = chunk_bytes or CHUNK_BYTES.get(device.type, DEFAULT_CHUNK_BYTES)
    if target is None:
        return Place(device, dtype, chunk_bytes=chunk_bytes, stream_networks=stream_networks)
    folder = TargetFolder(target)
    head = folder.head()
    head = _pinned(head.to(dtype), device) if head_on_host else head.to(device, dtype)
    return Place(
        device,
        dtype,
        folder,
        Embedding(folder.embedding(), device, dtype),
        Head(head, device, dtype, chunk_bytes=chunk_bytes),
        folder.final_norm().to(device),
        folder.norm_eps,
        chunk_bytes,
        stream_networks,
    )


def estimate_bytes(path: Path, options: LoadOptions, place: Place) -> int:
    """What a drafter will hold beyond what is shared, from shapes alone, before any tensor is read."""
    description = describe(path, options, place.target.facts if place.target is not None else None)
    network = sum(math.prod(shape) for shape in description.expected.values()) * place.dtype.itemsize
    aside = description.found
    own = 0
    if "embed_tokens.weight" in aside and place.embedding is None:
        own += math.prod(aside["embed_tokens.weight"]) * place.dtype.itemsize
    if "lm_head.weight" in aside and (place.head is None or "d2t" in aside or "t2d" in aside):
        own += math.prod(aside["lm_head.weight"]) * place.dtype.itemsize
    return network + own


def _pinned(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor


def load(path: Path, options: LoadOptions, place: Place, *, name: str = "") -> Loaded:
    """Describe, check and load one drafter.

    Raises:
        CheckpointError: the checkpoint cannot be used; names tensor, expected and found shape.
        MismatchError: it was made for another target.
    """
    facts = place.target.facts if place.target is not None else None
    description = describe(path, options, facts)
    spec = description.spec
    if place.target is not None and facts is not None:
        check_fit(
            DrafterSide(name or path.name, spec.taps, spec.target_hidden_size, spec.vocab_size, spec.target_num_layers),
            TargetSide(place.target.path.name, facts.num_layers, facts.hidden_size, facts.vocab_size),
        )
    description.check()
    digest, size = WeightsHash(), 0
    weights: dict[str, Tensor] = {}
    home = torch.device("cpu") if place.stream_networks else place.device
    for tensor_name, tensor in read_tensors(description):
        digest.add(tensor_name, tensor)
        weights[tensor_name] = tensor.to(home, place.dtype)
        size += weights[tensor_name].nbytes
    if description.file is None:
        digest.add(repr(spec), torch.empty(0))
    parameters = sum(t.numel() for t in weights.values())
    held: Weights = StreamedWeights(weights, place.device) if place.stream_networks else weights
    shared, from_target, own_bytes, warnings = _share(description, place)
    spec = replace(spec, warnings=(*spec.warnings, *warnings))
    network: Network = description.family.Network(spec, held, shared)
    return Loaded(
        network,
        spec,
        digest.hexdigest(),
        parameters,
        size + own_bytes,
        from_target,
        description.verdict.evidence,
        path,
        lambda changed: description.family.Network(changed, held, shared),
    )


def _share(description: Description, place: Place) -> tuple[Shared, tuple[str, ...], int, list[str]]:
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
