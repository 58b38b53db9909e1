"""From a described checkpoint to a drafter that runs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.reading import describe
from tauscope_drafter.checkpoint.weights import WeightsHash, read_tensors
from tauscope_drafter.families.family import Network, Weights
from tauscope_drafter.fit import DrafterSide, TargetSide, check_fit
from tauscope_drafter.place import Place, open_place
from tauscope_drafter.sharing import share
from tauscope_drafter.spec import DrafterSpec
from tauscope_drafter.streamed_weights import StreamedWeights

__all__ = ["Loaded", "Place", "estimate_bytes", "load", "open_place"]

ALIGNMENT = 64
"""Bytes: a cache line, and where torch's own allocations begin."""


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
        weights[tensor_name] = _placed(tensor, home, place.dtype)
        size += weights[tensor_name].nbytes
    if description.file is None:
        digest.add(repr(spec), torch.empty(0))
    parameters = sum(t.numel() for t in weights.values())
    held: Weights = StreamedWeights(weights, place.device) if place.stream_networks else weights
    shared, from_target, own_bytes, warnings = share(description, place)
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


def _placed(tensor: Tensor, home: torch.device, dtype: torch.dtype) -> Tensor:
    """A tensor where it is computed with, at an aligned address.

    On some processors a product rounds otherwise when its operand begins elsewhere, as it may in a mapped file; the
    same weights should give the same bits from every format.
    """
    moved = tensor.to(home, dtype)
    return moved if moved.data_ptr() % ALIGNMENT == 0 else moved.clone()
