"""Where streamed weights lie on the host, and how embedding and head are used from there; `ring` moves the layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.arena import ArenaLayout, HostArena, Region
from tauscope_target.copies import CopyQueue
from tauscope_target.layer_parts import Part, pieces_of
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
        layers = list(self.anatomy.layers)
        pieces = pieces_of([{name: tuple(p.shape) for name, p in layer.named_parameters()} for layer in layers])
        self.is_halved = all(None not in of_layer for of_layer in pieces)
        self.layers = [
            LayerRegions(
                {
                    part: tuple(
                        layout.add(
                            self._entry(f"{self.anatomy.layers_path}.{index}.{name}", layer.get_parameter(name))
                            for name in names
                        )
                        for names in of_part
                    )
                    for part, of_part in of_layer.items()
                }
            )
            for index, (layer, of_layer) in enumerate(zip(layers, pieces, strict=True))
        ]
        self._embedding_name = _name_of(self.anatomy.model, self.anatomy.embedding)
        head = self.anatomy.head
        if head is not None:  # a tied head is the embedding, which then lies in the arena, too
            is_tied = self.anatomy.model.config.tie_word_embeddings
            name = self._embedding_name if is_tied else _name_of(self.anatomy.model, head)
            layout.add([self._entry(f"{name}.weight", head.weight)])
        self.arena = HostArena(layout)
        self._regions = {name: region for region in layout.regions for name in region.slices}

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

    def blocks(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor | None]]:
        """Blocks in order; each is valid until the next is asked for. The buffers live as long as the iterator."""
        shape = (NUM_SLOTS, self.block_vocab, int(self._weight.shape[1]))
        buffers = torch.empty(shape, dtype=self._weight.dtype, device=self._device)
        for buffer in range(NUM_SLOTS):
            self._queue.mark_used(buffer)  # whatever had this memory before
        starts = list(range(0, self.vocab_size, self.block_vocab))
        try:
            self._copy(buffers, 0, starts)
            for number, start in enumerate(starts):
                if number + 1 < len(starts):
                    self._copy(buffers, number + 1, starts)
                stop = min(start + self.block_vocab, self.vocab_size)
                self._queue.wait_until_copied(number % NUM_SLOTS)
                bias = None if self._bias is None else self._bias[start:stop]
                yield start, buffers[number % NUM_SLOTS, : stop - start], bias
                self._queue.mark_used(number % NUM_SLOTS)
        finally:
            for buffer in range(NUM_SLOTS):
                self._queue.wait_until_copied(buffer)  # before the memory serves something else

    def _copy(self, buffers: torch.Tensor, number: int, starts: Sequence[int]) -> None:
        rows = self._weight[starts[number] : starts[number] + self.block_vocab]
        buffer = number % NUM_SLOTS
        self._queue.copy(buffer, buffers[buffer, : len(rows)], rows)


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
