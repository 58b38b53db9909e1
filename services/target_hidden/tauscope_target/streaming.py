"""Where streamed weights lie on the host, and how embedding and head are used from there; `ring` moves the layers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.arena import ArenaLayout, HostArena, Region
from tauscope_target.copies import CopyQueue
from tauscope_target.layer_parts import MlpParts, Part, mlp_parts, pieces_of
from tauscope_target.loading import LoadingPlan, parameter_dtype
from tauscope_target.memory import BLOCK_ELEMENTS, BLOCK_VOCAB

NUM_SLOTS = 2
"""Buffers of a streamed head: one is filled while the other is used."""


@dataclass(frozen=True)
class LayerRegions:
    """A layer in the arena: its halves in the order of use, or, under None, all of it; an MLP matrix by matrix."""

    regions: Mapping[Part | None, tuple[Region, ...]]

    @property
    def pieces(self) -> Iterator[tuple[Part | None, Region]]:
        """What travels, in the order of use."""
        return ((part, region) for part, regions in self.regions.items() for region in regions)

    @property
    def nbytes(self) -> int:
        """Bytes of the layer."""
        return sum(region.nbytes for _, region in self.pieces)


@dataclass
class StreamPlacement:
    """Where each parameter lies: layers and head in the arena, the embedding in host memory, the rest on the device.

    Args:
        anatomy: a trimmed skeleton.
        plan: dtype and device.
    """

    anatomy: Anatomy
    plan: LoadingPlan

    def __post_init__(self) -> None:
        layout = ArenaLayout()
        parts = [mlp_parts([name for name, _ in layer.named_parameters()]) for layer in self.anatomy.layers]
        self.is_halved = all(part is not None for part in parts)
        self.layers = [
            LayerRegions(
                {
                    part: tuple(
                        layout.add(
                            self._entry(f"{self.anatomy.layers_path}.{index}.{name}", layer.get_parameter(name))
                            for name in piece
                        )
                        for piece in pieces
                    )
                    for part, pieces in self._pieces(layer, found).items()
                }
            )
            for index, (layer, found) in enumerate(zip(self.anatomy.layers, parts, strict=True))
        ]
        self._embedding_name = _name_of(self.anatomy.model, self.anatomy.embedding)
        head = self.anatomy.head
        if head is not None:  # a tied head is the embedding, which then lies in the arena, too
            is_tied = self.anatomy.model.config.tie_word_embeddings
            name = self._embedding_name if is_tied else _name_of(self.anatomy.model, head)
            layout.add([self._entry(f"{name}.weight", head.weight)])
        self.arena = HostArena(layout)
        self._regions = {name: region for region in layout.regions for name in region.slices}

    def _pieces(self, layer: nn.Module, found: MlpParts | None) -> dict[Part | None, list[list[str]]]:
        """Names of a layer's parameters by half and piece, in the order of use."""
        shapes = {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}
        if not self.is_halved or found is None:
            return {None: [list(shapes)]}
        mlp = {name: shape for name, shape in shapes.items() if found.owns(name)}
        return {"mixer": [[name for name in shapes if name not in mlp]], "mlp": pieces_of(mlp)}

    def _entry(self, name: str, parameter: torch.Tensor) -> tuple[str, tuple[int, ...], torch.dtype]:
        return name, tuple(parameter.shape), parameter_dtype(self.anatomy.model, name, parameter, self.plan)

    def allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for one parameter."""
        region = self._regions.get(name)
        if region is not None:
            return region.slices[name].view(self.arena.region(region))
        on_host = name.startswith(f"{self._embedding_name}.")
        return torch.empty(shape, dtype=dtype, device="cpu" if on_host else self.plan.device)


class StreamedHead:
    """The output projection in host memory, visiting the device in blocks of vocabulary rows.

    Args:
        weight: [vocab, hidden], in the arena.
        bias: [vocab] or None.
        device: where logits are computed.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, device: torch.device) -> None:
        self.vocab_size = int(weight.shape[0])
        self.block_vocab = min(BLOCK_VOCAB["streamed"], self.vocab_size)
        self.block_elements = BLOCK_ELEMENTS["streamed"]
        self._weight = weight
        self._bias = None if bias is None else bias.to(device)
        self._device = device
        self._queue = CopyQueue(device, NUM_SLOTS)
        self._buffers: list[torch.Tensor] | None = None

    @property
    def buffer_bytes(self) -> int:
        """Device memory of the buffers, taken at the first use."""
        rows = self.block_vocab
        return NUM_SLOTS * rows * int(self._weight.shape[1]) * self._weight.itemsize

    def blocks(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor | None]]:
        """Blocks in order; each is valid until the next is asked for."""
        if self._buffers is None:
            shape = (self.block_vocab, int(self._weight.shape[1]))
            self._buffers = [
                torch.empty(shape, dtype=self._weight.dtype, device=self._device) for _ in range(NUM_SLOTS)
            ]
        starts = list(range(0, self.vocab_size, self.block_vocab))
        self._copy(0, starts[0])
        for number, start in enumerate(starts):
            if number + 1 < len(starts):
                self._copy((number + 1) % NUM_SLOTS, starts[number + 1])
            buffer = number % NUM_SLOTS
            stop = min(start + self.block_vocab, self.vocab_size)
            self._queue.wait_until_copied(buffer)
            bias = None if self._bias is None else self._bias[start:stop]
            yield start, self._buffers[buffer][: stop - start], bias
            self._queue.mark_used(buffer)

    def _copy(self, buffer: int, start: int) -> None:
        assert self._buffers is not None
        rows = self._weight[start : start + self.block_vocab]
        self._queue.copy(buffer, self._buffers[buffer][: len(rows)], rows)


def host_embedding(anatomy: Anatomy, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Looks embeddings up in host memory and sends only the rows that are needed."""

    def embed(token_ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = anatomy.embedding(token_ids)
        if device.type == "cuda":
            return rows.pin_memory().to(device, non_blocking=True)
        return rows

    return embed


def _name_of(model: nn.Module, part: nn.Module) -> str:
    name: str = next(name for name, module in model.named_modules() if module is part)
    return name
