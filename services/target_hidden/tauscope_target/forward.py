"""Runs the decoder over a right-padded batch, layer by layer, and stops after the deepest layer that is wanted.

Every decoder layer is wrapped in a `LayerStep`. While a pass is active the step hands its layer to the pass, which
makes the weights present, cuts the sequence into chunks where it is longer than `chunk_tokens` allows, and lets the
capture take its rows. Chunks are cut *inside* a layer: all chunks of layer i run before layer i + 1, so weights that
are streamed travel once per pass, whatever its length, and only one layer's keys, values and states are held at a time.

Padding lies to the right of every sequence and all layers are causal: a row depends on rows to its left only, so no
attention mask is needed and padding cannot matter.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.capture import Capture
from tauscope_target.duty import Duty
from tauscope_target.jobs import HiddenJob
from tauscope_wire.errors import DeadlineError, ErrorCode
from tauscope_wire.layers import EMBEDDING


class LayerWeights(Protocol):
    """Makes the weights of a layer present while it runs."""

    def acquire(self, index: int, *, deepest: int) -> None:
        """The layer's parameters are usable on the current stream when this returns."""
        ...

    def release(self, index: int) -> None:
        """The layer has run; its memory may be used for another one."""
        ...


class ResidentWeights:
    """All weights are where they are needed."""

    def acquire(self, index: int, *, deepest: int) -> None:
        """Nothing to do."""

    def release(self, index: int) -> None:
        """Nothing to do."""


class PassEnded(Exception):  # noqa: N818 - not an error: it ends the decoder's own loop after the deepest layer
    """Raised by the deepest layer's step."""


class LayerStep(nn.Module):
    """One decoder layer, run by the active pass if there is one."""

    def __init__(self, layer: nn.Module, index: int, runner: "DecoderRunner") -> None:
        super().__init__()
        self.layer = layer
        self._index = index
        self._runner = [runner]  # in a list: a module attribute would make the runner's modules children

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)  # decoders read fields of their layers

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        return self._runner[0].run_layer(self._index, self.layer, hidden_states, args, kwargs)


class DecoderRunner:
    """Runs passes over one model. Not thread-safe: the compute thread owns it.

    Args:
        anatomy: the model; its layers are wrapped here.
        weights: how layers get their weights.
        device: where activations live.
        chunk_tokens: most tokens that a layer computes at once.
        duty: pauses between layers; none by default.
        embed: token ids [batch, seq] (int64, CPU) to embeddings on the device.
        layer_devices: where each layer lies, when they are spread; None puts all on `device`.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        *,
        weights: LayerWeights,
        device: torch.device,
        chunk_tokens: int,
        duty: Duty | None = None,
        embed: Callable[[torch.Tensor], torch.Tensor] | None = None,
        layer_devices: Sequence[torch.device] | None = None,
    ) -> None:
        self.anatomy = anatomy
        self.chunk_tokens = chunk_tokens
        self._weights = weights
        self._duty = duty if duty is not None else Duty(1.0, device=device)
        self._device = device
        self._layer_devices = layer_devices
        self._embed = embed if embed is not None else self._embed_on_device
        self._capture: Capture | None = None
        self._is_cancelled: Callable[[], bool] = lambda: False
        layers = anatomy.layers
        for index in range(len(layers)):
            layers[index] = LayerStep(layers[index], index, self)

    def run(self, jobs: Sequence[HiddenJob], capture: Capture) -> None:
        """Run one pass; `capture` holds the results afterwards.

        Raises:
            DeadlineError: every job of the pass was given up by its caller (`cancelled`).
        """
        with self._active(jobs, capture), suppress(PassEnded):
            self.anatomy.decoder(inputs_embeds=self.embed(right_padded(jobs)), use_cache=False)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embedding output [batch, seq, hidden] of ids [batch, seq]; a fresh tensor."""
        return self._embed(token_ids)

    def run_layer(
        self, index: int, layer: nn.Module, hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one layer of the pass under way; without one (generation) the layer as it is."""
        capture = self._capture
        deepest = capture.deepest if capture is not None else len(self.anatomy.layers) - 1
        if self._is_cancelled():
            raise DeadlineError("the callers of this pass are gone", ErrorCode.CANCELLED)
        if self._layer_devices is not None:
            hidden, args, kwargs = moved((hidden, args, kwargs), self._layer_devices[index])
        if capture is not None and index == 0:
            capture.take(EMBEDDING, 0, hidden)
            if deepest == EMBEDDING:
                raise PassEnded
        self._duty.begin()
        self._weights.acquire(index, deepest=deepest)
        try:
            if capture is None:
                return layer(hidden, *args, **kwargs)
            width = max(1, self.chunk_tokens // len(hidden))
            if hidden.shape[1] <= width or args or not self.anatomy.is_chunkable:
                output = layer(hidden, *args, **kwargs)
                capture.take(index, 0, first(output))
            else:
                output = self._in_chunks(index, layer, hidden, capture=capture, width=width, kwargs=kwargs)
        finally:
            self._weights.release(index)
            self._duty.end()
        if index >= deepest:
            raise PassEnded
        return output

    def _in_chunks(
        self,
        index: int,
        layer: nn.Module,
        hidden: torch.Tensor,
        *,
        capture: Capture,
        width: int,
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        """Run a layer over chunks of columns, carrying its keys, values, convolution and recurrent state.

        Writes each chunk's output over its input: later chunks read only their own columns and the carried state.
        """
        from transformers import DynamicCache

        cache = DynamicCache(config=self.anatomy.config)
        for start in range(0, hidden.shape[1], width):
            if self._is_cancelled():
                raise DeadlineError("the callers of this pass are gone", ErrorCode.CANCELLED)
            stop = min(start + width, hidden.shape[1])
            part = sliced(kwargs, start, stop)
            part |= {self.anatomy.cache_keyword: cache, "use_cache": True}
            output = first(layer(hidden[:, start:stop], **part))
            capture.take(index, start, output)
            hidden[:, start:stop] = output
        return hidden

    def _embed_on_device(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.anatomy.embedding(token_ids.to(self._device))
        return embedded

    @contextmanager
    def _active(self, jobs: Sequence[HiddenJob], capture: Capture) -> Iterator[None]:
        self._capture = capture
        self._is_cancelled = lambda: all(job.is_cancelled() for job in jobs)
        try:
            yield
        finally:
            self._capture = None
            self._is_cancelled = lambda: False


def moved(value: Any, device: torch.device) -> Any:
    """The same value with every tensor in it on `device`; a cache stays, its layers are where they were filled."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {name: moved(part, device) for name, part in value.items()}
    return value


def right_padded(jobs: Sequence[HiddenJob]) -> torch.Tensor:
    """Token ids [batch, longest], int64, on the CPU; each row up to its job's `stop`, then id 0."""
    longest = max(job.stop for job in jobs)
    ids = np.zeros((len(jobs), longest), np.int64)
    for row, job in enumerate(jobs):
        ids[row, : job.stop] = job.token_ids[: job.stop]
    return torch.from_numpy(ids)


def first(output: Any) -> torch.Tensor:
    """The hidden states of a layer's output, which some architectures wrap in a tuple."""
    states: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return states


def sliced(kwargs: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """A layer's keyword arguments for columns start..stop.

    Raises:
        ValueError: an argument is a tensor whose meaning is not known; its layer must not be cut.
    """
    part: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name == "position_embeddings":
            part[name] = tuple(table[..., start:stop, :] for table in value)
        elif name in ("position_ids", "cache_position") and value is not None:
            part[name] = value[..., start:stop]
        elif isinstance(value, torch.Tensor):
            raise ValueError(f"{name} is a tensor: this layer cannot run in chunks")
        else:
            part[name] = value
    return part
