"""Layer streaming: weights live in host memory and visit the device in pieces, in the order of their use.

A layer of the usual build travels as its token mixer and the matrices of its MLP; others travel whole. One device
buffer is divided into cells, each large enough for the pieces that take turns in it, and a piece has the same cell in
every pass, so that parameters are bound once, as views. With cells for one layer the MLP arrives while the mixer
computes, and the next mixer while the MLP does; with more, copies run further ahead: the first matrix of the next MLP
into a spare cell, say. A copy stream fills a cell while others are in use; events in both directions keep them apart:
compute waits until the copy is done, the copy waits until the cell's last use is done. The arithmetic is that of
resident weights, bit for bit: same kernels, same shapes, same alignment, only the address of a weight differs.
Without a GPU the same code copies synchronously.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.arena import REGION_ALIGNMENT, Region
from tauscope_target.copies import CopyQueue
from tauscope_target.layer_parts import Part
from tauscope_target.memory import LONG_RING, WHOLE_LAYERS, RingShape
from tauscope_target.streaming import StreamPlacement


class Piece(NamedTuple):
    """Weights that travel together.

    Attributes:
        number: place in the order of use.
        layer: the layer that they belong to.
        part: the half that they are, or are of; None for the whole layer.
        region: where they lie on the host.
        cell: where they go on the device.
    """

    number: int
    layer: int
    part: Part | None
    region: Region
    cell: int


class StreamedWeights:
    """Gives layers their weights through the cells of one device buffer.

    Args:
        anatomy: the filled model; its layers' parameters become views into the buffer.
        placement: where the weights lie on the host.
        device: where they are needed.
        shape: what the buffer holds at once; layers that travel whole have two cells at least.
    """

    def __init__(
        self, anatomy: Anatomy, placement: StreamPlacement, *, device: torch.device, shape: RingShape = WHOLE_LAYERS
    ) -> None:
        self._placement = placement
        self._device = device
        self._layers = list(anatomy.layers)
        self._layers_path = anatomy.layers_path
        self._shape = shape
        self._arranged: RingShape | None = None
        self._arrange(shape)

    def prepare(self, *, is_long: bool) -> None:
        """Before a pass: a long one computes for longer than copies take, and needs the memory of spare cells.

        Raises:
            torch.OutOfMemoryError: the device refuses the memory of the cells; the next call tries again.
        """
        shape = LONG_RING if is_long and self.is_halved else self._shape
        if shape != self._arranged:
            self._drop()
            self._arrange(shape)

    @torch.inference_mode(False)
    def _arrange(self, shape: RingShape) -> None:
        """Give every piece its cell; nothing of it becomes an inference tensor, which compiled code would take for
        another kind of weight.
        """
        matrices = max((len(layer.regions.get("mlp", ())) for layer in self._placement.layers), default=0)
        counts: dict[Part | None, int] = {
            "mixer": shape.mixers,
            "mlp": shape.mlps * matrices + shape.spare,
            None: max(shape.mlps, WHOLE_LAYERS.mlps),
        }
        self._pieces: list[Piece] = []
        self._of_layer: list[list[Piece]] = []
        cells: dict[tuple[Part | None, int], int] = {}
        seen: dict[Part | None, int] = dict.fromkeys(counts, 0)
        extents: list[int] = []
        for index, layer in enumerate(self._placement.layers):
            self._of_layer.append([])
            for part, region in layer.pieces:
                cell = cells.setdefault((part, seen[part] % counts[part]), len(cells))
                seen[part] += 1
                extents += [0] * (cell + 1 - len(extents))
                extents[cell] = max(extents[cell], region.nbytes)
                piece = Piece(len(self._pieces), index, part, region, cell)
                self._pieces.append(piece)
                self._of_layer[index].append(piece)
        starts = [0]
        for extent in extents:
            starts.append(starts[-1] + -(-extent // REGION_ALIGNMENT) * REGION_ALIGNMENT)
        self._buffer = torch.empty(starts[-1], dtype=torch.uint8, device=self._device)
        self._cells = [self._buffer[start : start + extent] for start, extent in zip(starts[:-1], extents, strict=True)]
        self._held: list[int | None] = [None] * len(extents)
        self._in_use: set[int] = set()
        self._deepest = 0
        self._queue = CopyQueue(self._device, len(extents))
        for cell in range(len(extents)):
            self._queue.mark_used(cell)  # whatever had this memory before
        for piece in self._pieces:
            self._rebind(piece, self._cells[piece.cell])
        self._arranged = shape

    @torch.inference_mode(False)
    def _drop(self) -> None:
        """Give the memory of the cells back."""
        self._arranged = None
        for cell in range(len(self._cells)):
            self._queue.wait_until_copied(cell)
        nothing = self._buffer.new_empty(0)
        for piece in self._pieces:
            self._rebind(piece, nothing)
        self._buffer, self._cells = nothing, []

    @property
    def is_halved(self) -> bool:
        """Whether layers travel as two halves."""
        return self._placement.is_halved

    @property
    def buffer_bytes(self) -> int:
        """Device memory of the buffer."""
        return self._buffer.numel()

    def bytes_of(self, num_layers: int) -> int:
        """Bytes that a pass over the first layers brings to the device."""
        return sum(layer.nbytes for layer in self._placement.layers[:num_layers])

    def acquire(self, index: int, *, deepest: int, part: Part | None = None) -> None:
        """Make a layer, or a half of it, present, and start copying what will follow.

        Args:
            index: the layer.
            deepest: last layer of this pass; the first one of the next pass follows it.
            part: which half, or None for everything.
        """
        self._deepest = deepest
        wanted = self._wanted(index, part)
        for piece in wanted:
            self._in_use.add(piece.number)
            self._issue(piece)
            self._queue.wait_until_copied(piece.cell)
        self._copy_ahead(wanted[-1])

    def release(self, index: int, *, part: Part | None = None) -> None:
        """What was acquired has run (on the stream): its cells may be filled again."""
        wanted = self._wanted(index, part)
        for piece in wanted:
            self._queue.mark_used(piece.cell)
            self._in_use.discard(piece.number)
        self._copy_ahead(wanted[-1])

    def _wanted(self, index: int, part: Part | None) -> list[Piece]:
        pieces = self._of_layer[index]
        return [piece for piece in pieces if part is None or piece.part in (part, None)]

    def _copy_ahead(self, last: Piece) -> None:
        """Copy what follows `last`, up to the first piece whose cell is needed sooner by another one."""
        claimed = {self._pieces[number].cell for number in self._in_use}
        for piece in self._following(last):
            if piece.cell in claimed:
                return
            claimed.add(piece.cell)
            self._issue(piece)

    def _following(self, last: Piece) -> Iterator[Piece]:
        """As many pieces as there are cells, in the order of use; after the deepest layer comes the next pass."""
        ran = self._of_layer[self._deepest][-1].number + 1
        for step in range(1, len(self._cells) + 1):
            yield self._pieces[(last.number + step) % ran]

    def _issue(self, piece: Piece) -> None:
        if self._held[piece.cell] == piece.number:
            return
        target = self._cells[piece.cell][: piece.region.nbytes]
        self._queue.copy(piece.cell, target, self._placement.arena.region(piece.region))
        self._held[piece.cell] = piece.number

    def _rebind(self, piece: Piece, cell: torch.Tensor) -> None:
        """Make the parameters of a piece views into its cell, or, without memory, into nothing."""
        prefix = f"{self._layers_path}.{piece.layer}."
        for name, place in piece.region.slices.items():
            owner, _, leaf = name.removeprefix(prefix).rpartition(".")
            module = self._layers[piece.layer].get_submodule(owner)
            view = place.view(cell) if cell.numel() else cell.view(place.dtype)
            module._parameters[leaf] = nn.Parameter(view, requires_grad=False)
