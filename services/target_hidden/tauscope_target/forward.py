"""Runs the decoder over a right-padded batch, layer by layer, and stops after the deepest layer that is wanted.

Every decoder layer is wrapped in a `LayerStep`. While a pass is active the step hands its layer to the pass, which
makes the weights present, cuts the batch into chunks where it is larger than `chunk_tokens` allows, and lets the
capture take its rows. Chunks are cut *inside* a layer: all chunks of layer i run before layer i + 1, so weights that
are streamed travel once per pass, whatever its length, and only one layer's keys, values and states are held at a time.

On the device a chunk is written over in place; a prompt that is too long for that has its residual stream in host
memory (`residual`). Where weights arrive in halves of a layer, all chunks run through the one before the other
(`halves`), so that the weights of the first can make room.

Padding lies to the right of every sequence and all layers are causal: a row depends on rows to its left only, so no
attention mask is needed and padding cannot matter.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.capture import Capture
from tauscope_target.duty import Duty
from tauscope_target.jobs import HiddenJob
from tauscope_target.layer_runs import LayerRuns, LayerWeights, Pass
from tauscope_target.memory import Budget
from tauscope_target.residual import Chunk, HostResidual, PinnedMemory
from tauscope_wire.layers import EMBEDDING


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
        device_tokens: largest pass, padding included, whose residual stream stays on the device; None: every one.
        long_chunk_tokens: as `chunk_tokens`, in larger passes; None takes the same.
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
        device_tokens: int | None = None,
        long_chunk_tokens: int | None = None,
        duty: Duty | None = None,
        embed: Callable[[torch.Tensor], torch.Tensor] | None = None,
        layer_devices: Sequence[torch.device] | None = None,
    ) -> None:
        self.anatomy = anatomy
        self.chunk_tokens = chunk_tokens
        self.device_tokens = device_tokens
        self.long_chunk_tokens = long_chunk_tokens
        self._weights = weights
        self._duty = duty if duty is not None else Duty(1.0)
        self._device = device
        self._layer_devices = layer_devices
        self._embed = embed if embed is not None else self._embed_on_device
        self._pass: Pass | None = None
        self._memory = PinnedMemory(device)
        self._seen: list[torch.Tensor] | None = None
        self._takes_long_prompts: bool | None = None
        self._runs = LayerRuns(anatomy, weights)
        layers = anatomy.layers
        for index in range(len(layers)):
            layers[index] = LayerStep(layers[index], index, self)

    def run(self, jobs: Sequence[HiddenJob], capture: Capture) -> None:
        """Run one pass; `capture` holds the results afterwards.

        Raises:
            DeadlineError: every job of the pass was given up by its caller (`cancelled`).
            UnavailableError: the system refuses host memory for a long prompt (`out_of_memory`).
            torch.OutOfMemoryError: the device refuses memory.
        """
        ids = right_padded(jobs)
        active = Pass(jobs, capture, ids.shape[1])
        is_long = self.device_tokens is not None and ids.numel() > self.device_tokens and self.takes_long_prompts
        try:
            self._weights.prepare(is_long=is_long)
            inputs = self._on_host(ids, active) if is_long else self.embed(ids)
            self._pass = active
            with suppress(PassEnded):
                self.anatomy.decoder(inputs_embeds=inputs, use_cache=False)
        finally:
            self._pass = None
            if active.host is not None:
                active.host.close()
            active.room = None  # tracebacks may hold the pass for a while, but need not hold its memory

    def adopt(self, budget: Budget) -> None:
        """Run later passes in the sizes of a budget."""
        self.chunk_tokens = budget.chunk_tokens
        self.device_tokens = budget.device_tokens
        self.long_chunk_tokens = budget.long_chunk_tokens

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embedding output [batch, seq, hidden] of ids [batch, seq]; a fresh tensor."""
        return self._embed(token_ids)

    @property
    def takes_long_prompts(self) -> bool:
        """Whether the residual stream can lie in host memory: layers can be cut, and the decoder hands its input to the
        first one as it is. Asked of the decoder itself.
        """
        if self._takes_long_prompts is None:
            answer = self.anatomy.is_chunkable and self._layer_devices is None
            if answer:
                with torch.inference_mode():
                    placeholder = self._placeholder(1, 2)
                    self._seen = []
                    try:
                        with suppress(PassEnded):
                            self.anatomy.decoder(inputs_embeds=placeholder, use_cache=False)
                        answer = [t.data_ptr() for t in self._seen] == [placeholder.data_ptr()]
                    finally:
                        self._seen = None
            self._takes_long_prompts = answer
        return self._takes_long_prompts

    def run_layer(
        self, index: int, layer: nn.Module, hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one layer of the pass under way; without one (generation) the layer as it is."""
        if self._seen is not None:
            self._seen.append(hidden)
            raise PassEnded
        device = self._device
        if self._layer_devices is not None:
            device = self._layer_devices[index]
            hidden, args, kwargs = moved((hidden, args, kwargs), device)
        active = self._pass
        deepest = len(self.anatomy.layers) - 1 if active is None else active.capture.deepest
        if active is not None:
            active.check()
            if index == 0 and active.host is None:
                active.capture.take(EMBEDDING, 0, hidden)
            if deepest == EMBEDDING:
                for number in range(len(active.host.chunks) if active.host is not None else 0):
                    active.check()
                    active.host.load(number)  # type: ignore[union-attr]
                raise PassEnded
        self._duty.begin()
        try:
            if active is None:
                output = self._plain(index, layer, hidden, args, kwargs)
            else:
                output = self._runs.run(index, layer, hidden, args, kwargs, active=active, tokens=self.chunk_tokens)
        finally:
            self._duty.end(device)
        if active is not None and index >= deepest:
            raise PassEnded
        return output

    def _plain(
        self, index: int, layer: nn.Module, hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._weights.acquire(index, deepest=len(self.anatomy.layers) - 1)
        try:
            return layer(hidden, *args, **kwargs)
        finally:
            self._weights.release(index)

    def _on_host(self, ids: torch.Tensor, active: Pass) -> torch.Tensor:
        """Prepare a residual stream in host memory; gives the placeholder for the decoder's own loop."""

        def source(chunk: Chunk) -> torch.Tensor:
            embedded = self.embed(ids[chunk.rows, chunk.start : chunk.stop])
            active.capture.take(EMBEDDING, chunk.start, embedded, first_row=chunk.rows.start)
            return embedded

        placeholder = self._placeholder(*ids.shape)
        tokens = self.long_chunk_tokens or self.chunk_tokens
        active.host = HostResidual(placeholder, tokens, memory=self._memory, source=source)
        return placeholder

    def _placeholder(self, batch: int, length: int) -> torch.Tensor:
        """Shape, dtype and device of a residual stream [batch, length, hidden], in the memory of one element."""
        row = self.embed(torch.zeros(1, 1, dtype=torch.int64))
        return row[:, :, :1].expand(batch, length, row.shape[2])

    def _embed_on_device(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.anatomy.embedding(token_ids.to(self._device))
        return embedded


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
