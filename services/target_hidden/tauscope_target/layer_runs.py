"""Runs one layer of a pass: over chunks of a batch, in halves where its weights arrive in halves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.capture import Capture
from tauscope_target.halves import JUDGED_ROWS, JUDGED_TOKENS, Halves
from tauscope_target.jobs import HiddenJob
from tauscope_target.layer_parts import Part
from tauscope_target.residual import Chunk, DeviceResidual, HostResidual, Residual
from tauscope_wire.errors import DeadlineError, ErrorCode


class LayerWeights(Protocol):
    """Makes the weights of a layer, or of one half of it, present while they are used."""

    @property
    def is_halved(self) -> bool:
        """Whether halves can be had one by one."""
        ...

    def prepare(self, *, is_long: bool) -> None:
        """A pass begins; a long one has its residual stream in host memory.

        Raises:
            torch.OutOfMemoryError: the device refuses what the weights need of it.
        """
        ...

    def acquire(self, index: int, *, deepest: int, part: Part | None = None) -> None:
        """The parameters are usable on the current stream when this returns."""
        ...

    def release(self, index: int, *, part: Part | None = None) -> None:
        """What was acquired has run; its memory may be used for something else."""
        ...


class ResidentWeights:
    """All weights are where they are needed."""

    is_halved = False

    def prepare(self, *, is_long: bool) -> None:
        """Nothing to do."""

    def acquire(self, index: int, *, deepest: int, part: Part | None = None) -> None:
        """Nothing to do."""

    def release(self, index: int, *, part: Part | None = None) -> None:
        """Nothing to do."""


@dataclass(eq=False)
class Pass:
    """What is under way.

    Attributes:
        jobs: the requests.
        capture: takes their rows.
        length: tokens of the longest one.
        host: the residual stream, if it lies in host memory.
        room: keys and values of the layer under way, once a layer was cut.
    """

    jobs: Sequence[HiddenJob]
    capture: Capture
    length: int
    host: HostResidual | None = None
    room: Any = None

    def check(self) -> None:
        """Raise when nobody waits for this pass any more."""
        if all(job.is_cancelled() for job in self.jobs):
            raise DeadlineError("the callers of this pass are gone", ErrorCode.CANCELLED)


class LayerRuns:
    """Runs layers.

    Args:
        anatomy: the model, before its layers are wrapped.
        weights: how layers get their weights.
    """

    def __init__(self, anatomy: Anatomy, weights: LayerWeights) -> None:
        self._anatomy = anatomy
        self._weights = weights
        self._halves = Halves(anatomy)

    def run(
        self,
        index: int,
        layer: nn.Module,
        hidden: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        active: Pass,
        tokens: int,
    ) -> Any:
        """Run a layer, or each of its halves, over chunks, carrying keys, values and states from columns to columns.

        Args:
            index: of the layer.
            layer: the layer.
            hidden: [batch, seq, hidden], or a placeholder of that shape while the residual stream lies on the host.
            args: positional arguments of the layer; with any, it is not cut.
            kwargs: its keyword arguments.
            active: the pass.
            tokens: most of a chunk, with the residual stream on the device.

        Returns:
            What the layer returns.
        """
        residual: Residual
        if active.host is not None:
            residual = active.host
        else:
            is_whole = bool(args) or not self._anatomy.is_chunkable
            residual = DeviceResidual(hidden, None if is_whole else tokens)
        rest: tuple[Any, ...] | None = None  # what an architecture returns beside hidden states

        def whole(chunk: torch.Tensor, part: dict[str, Any]) -> torch.Tensor:
            nonlocal rest
            output = layer(chunk, *args, **part)
            rest = output[1:] if isinstance(output, tuple) else None
            return first(output)

        steps: list[tuple[Part | None, Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]]] = [(None, whole)]
        if self._weights.is_halved and not args and self._has_halves(index, layer, hidden, kwargs, active=active):
            steps = [
                ("mixer", lambda chunk, part: self._halves.run_mixer(index, layer, chunk, part)),
                ("mlp", lambda chunk, part: self._halves.run_mlp(index, layer, chunk)),
            ]
        carried: dict[str, Any] = {}
        for number, (name, step) in enumerate(steps):
            self._weights.acquire(index, deepest=active.capture.deepest, part=name)
            try:
                for place, chunk in enumerate(residual.chunks):
                    active.check()
                    if chunk.start == 0 and number == 0:
                        carried = self._carried(index, active) if chunk.stop < hidden.shape[1] else {}
                    part = sliced(kwargs, chunk, len(hidden)) | carried if len(residual.chunks) > 1 else kwargs
                    output = step(residual.load(place), part)
                    if number == len(steps) - 1:
                        active.capture.take(index, chunk.start, output, first_row=chunk.rows.start)
                        if active.host is not None:
                            active.capture.summarise(
                                index, chunk.start, output, first_row=chunk.rows.start, check=active.check
                            )
                    residual.store(place, output)
                    del output
            finally:
                self._weights.release(index, part=name)
        if active.host is None:
            active.capture.summarise(index, 0, residual.hidden, check=active.check)
        return residual.hidden if rest is None else (residual.hidden, *rest)

    def _has_halves(
        self, index: int, layer: nn.Module, hidden: torch.Tensor, kwargs: dict[str, Any], *, active: Pass
    ) -> bool:
        """Whether a layer runs in halves; the first one of its type is run both ways on random rows."""
        rows = min(hidden.shape[1], JUDGED_TOKENS, max(2, JUDGED_ROWS // len(hidden)))
        if not self._halves.is_judged(index) and rows > 1 and self._anatomy.is_chunkable:
            random = torch.Generator(hidden.device).manual_seed(index)
            shape = (len(hidden), rows, hidden.shape[2])
            probe = torch.randn(shape, generator=random, dtype=hidden.dtype, device=hidden.device)
            self._weights.acquire(index, deepest=active.capture.deepest)
            try:
                self._halves.judge(
                    index, layer, probe, sliced(kwargs, Chunk(slice(0, len(hidden)), 0, rows), len(hidden))
                )
            finally:
                self._weights.release(index)
        return self._halves.has(index)

    def _carried(self, index: int, active: Pass) -> dict[str, Any]:
        """Arguments that make a layer remember the chunks before."""
        from tauscope_target.layer_cache import KeyValueBuffers, layer_cache

        if active.room is None:
            active.room = KeyValueBuffers(active.length)
        return {self._anatomy.cache_keyword: layer_cache(self._anatomy, index, active.room), "use_cache": True}


def first(output: Any) -> torch.Tensor:
    """The hidden states of a layer's output, which some architectures wrap in a tuple."""
    states: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return states


def sliced(kwargs: dict[str, Any], chunk: Chunk, batch: int) -> dict[str, Any]:
    """A layer's keyword arguments for a chunk of a batch.

    Raises:
        ValueError: an argument is a tensor whose meaning is not known; its layer must not be cut.
    """
    rows, start, stop = chunk
    part: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name == "position_embeddings":  # cosines and sines [batch or 1, seq, dim]
            part[name] = tuple((table[rows] if len(table) == batch else table)[..., start:stop, :] for table in value)
        elif name in ("position_ids", "cache_position") and value is not None:  # [.., batch or 1, seq], [seq]
            of_rows = value[..., rows, :] if value.ndim > 1 and value.shape[-2] == batch else value
            part[name] = of_rows[..., start:stop]
        elif isinstance(value, torch.Tensor):
            raise ValueError(f"{name} is a tensor: this layer cannot run in chunks")
        else:
            part[name] = value
    return part
