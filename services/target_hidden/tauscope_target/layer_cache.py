"""Keys, values and states that one layer carries from chunk to chunk of a sequence.

Convolution and recurrent states are transformers' own. Keys and values are written into a buffer that is taken once a
pass for the whole sequence and handed from layer to layer: appending them by concatenation, as the library does, takes
twice the memory and another block of the allocator for every chunk.
"""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tauscope_target.anatomy import Anatomy


class KeyValueBuffers:
    """Room for keys and values of one layer; the next layer that asks takes it over.

    Args:
        length: tokens of the sequence.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._buffers: list[torch.Tensor | None] = [None, None]

    def take(self, states: torch.Tensor, number: int) -> torch.Tensor:
        """A buffer [batch, heads, length, dim] like `states` [batch, heads, any, dim]: 0 for keys, 1 for values."""
        batch, heads, _, dim = states.shape
        shape = (batch, heads, self._length, dim)
        buffer = self._buffers[number]
        if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != (shape, states.dtype, states.device):
            self._buffers[number] = None  # free it first
            buffer = self._buffers[number] = torch.empty(shape, dtype=states.dtype, device=states.device)
        return buffer


class BufferedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values as views into buffers; the same numbers as concatenation gives."""

    def __init__(self, buffers: KeyValueBuffers) -> None:
        super().__init__()
        self._room = buffers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [batch, heads, new, dim]; all so far are returned."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        appended = []
        for number, states in enumerate((key_states, value_states)):
            buffer = self._room.take(states, number)
            buffer[:, :, start:stop] = states
            appended.append(buffer[:, :, :stop])
        self.keys, self.values = appended
        return self.keys, self.values


def layer_cache(anatomy: Anatomy, index: int, buffers: KeyValueBuffers) -> DynamicCache:
    """An empty cache in which layer `index` keeps its keys and values in `buffers`."""
    cache = DynamicCache(config=anatomy.config)
    if type(cache.layers[index]) is DynamicLayer:
        cache.layers[index] = BufferedLayer(buffers)
    return cache
