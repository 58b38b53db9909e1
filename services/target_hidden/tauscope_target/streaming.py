"""Layer streaming: weights live in host memory and visit the device two layers at a time.

The parameters of layer i are, once and for all, views into device slot i mod 2. A copy stream fills one slot while the
other computes; events in both directions keep them apart: compute waits until the copy is done, the copy waits until
the slot's last use is done. The arithmetic is that of resident weights, bit for bit: same kernels, same shapes, same
alignment, only the address of a weight differs. Without a GPU the same code copies synchronously.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.arena import ArenaLayout, HostArena, Region
from tauscope_target.loading import LoadingPlan, parameter_dtype
from tauscope_target.memory import BLOCK_ELEMENTS, BLOCK_VOCAB

NUM_SLOTS = 2


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
        self.layers = [
            layout.add(
                self._entry(f"{self.anatomy.layers_path}.{index}.{name}", parameter)
                for name, parameter in layer.named_parameters()
            )
            for index, layer in enumerate(self.anatomy.layers)
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


class StreamedWeights:
    """Gives layers their weights through two device slots.

    Args:
        anatomy: the filled model; its layers' parameters become views into the slots.
        placement: where the weights lie on the host.
        device: where they are needed.
    """

    def __init__(self, anatomy: Anatomy, placement: StreamPlacement, *, device: torch.device) -> None:
        self._placement = placement
        largest = max(region.nbytes for region in placement.layers)
        self._slots = [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(NUM_SLOTS)]
        self._held = [-1] * NUM_SLOTS
        self._following: int | None = None
        self._queue = CopyQueue(device, NUM_SLOTS)
        for index, layer in enumerate(anatomy.layers):
            _rebind(layer, placement.layers[index], self._slots[index % NUM_SLOTS], anatomy.layers_path, index)

    @property
    def slot_bytes(self) -> int:
        """Device memory of the slots."""
        return sum(slot.numel() for slot in self._slots)

    def acquire(self, index: int, *, deepest: int) -> None:
        """Make layer `index` present, and start copying the one that will follow it."""
        self._issue(index)
        self._queue.wait_until_copied(index % NUM_SLOTS)
        following = index + 1 if index < deepest else 0
        if following % NUM_SLOTS == index % NUM_SLOTS:
            self._following = following  # its slot is in use until this layer has run
        else:
            self._issue(following)

    def release(self, index: int) -> None:
        """Layer `index` has run (on the stream): its slot may be filled again."""
        self._queue.mark_used(index % NUM_SLOTS)
        if self._following is not None:
            self._issue(self._following)
            self._following = None

    def _issue(self, index: int) -> None:
        slot = index % NUM_SLOTS
        if self._held[slot] == index:
            return
        region = self._placement.layers[index]
        self._queue.copy(slot, self._slots[slot][: region.nbytes], self._placement.arena.region(region))
        self._held[slot] = index


class CopyQueue:
    """Asynchronous copies into numbered buffers, ordered against the compute stream by events."""

    def __init__(self, device: torch.device, num_buffers: int) -> None:
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._copied = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]
            self._used = [torch.cuda.Event() for _ in range(num_buffers)]  # type: ignore[no-untyped-call]

    def copy(self, buffer: int, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy into a buffer once its last use is done."""
        if self._stream is None:
            target.copy_(source)
            return
        self._stream.wait_event(self._used[buffer])
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._copied[buffer].record(self._stream)

    def wait_until_copied(self, buffer: int) -> None:
        """Make the compute stream wait for the buffer's copy."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied[buffer])

    def mark_used(self, buffer: int) -> None:
        """What was put on the compute stream so far is the buffer's last use."""
        if self._stream is not None:
            self._used[buffer].record(torch.cuda.current_stream(self._device))


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


def _rebind(layer: nn.Module, region: Region, slot: torch.Tensor, layers_path: str, index: int) -> None:
    """Make a layer's parameters views into its slot."""
    prefix = f"{layers_path}.{index}."
    for name, piece in region.slices.items():
        owner, _, leaf = name.removeprefix(prefix).rpartition(".")
        module = layer.get_submodule(owner)
        module._parameters[leaf] = nn.Parameter(piece.view(slot), requires_grad=False)


def _name_of(model: nn.Module, part: nn.Module) -> str:
    name: str = next(name for name, module in model.named_modules() if module is part)
    return name
