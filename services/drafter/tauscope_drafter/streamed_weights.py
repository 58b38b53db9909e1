"""Weights that stay on the host and travel to the device when a layer reads them.

For a device that has no room for a network: each access copies one tensor, and the copy dies with its last use. Larger
batches of anchors pay for fewer copies; the numbers are those of resident weights, bit for bit.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

# Smaller tensors (norms, biases) stay on the device: they cost nothing there, and a copy costs a launch each.
RESIDENT_BYTES = 1 << 20


class StreamedWeights(Mapping[str, Tensor]):
    """A network's tensors by name; large ones are copied on access.

    Args:
        weights: on the host, in the compute dtype.
        device: where they are read.
    """

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._device = device
        small = {name: t.to(device) for name, t in weights.items() if t.nbytes <= RESIDENT_BYTES}
        large = {name: t for name, t in weights.items() if name not in small}
        self._weights = small | (_in_one_arena(large) if device.type == "cuda" else large)

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name].to(self._device, non_blocking=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    @property
    def device_bytes(self) -> int:
        """What stays on the device."""
        return sum(t.nbytes for t in self._weights.values() if t.device.type == self._device.type)


def _in_one_arena(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as views of one pinned buffer: the allocator rounds every request up to a power of two."""
    dtypes = {t.dtype for t in weights.values()}
    if len(dtypes) != 1:
        return {name: t.pin_memory() for name, t in weights.items()}
    arena = torch.empty(sum(t.numel() for t in weights.values()), dtype=dtypes.pop(), pin_memory=True)
    views, start = {}, 0
    for name, tensor in weights.items():
        views[name] = arena[start : start + tensor.numel()].view(tensor.shape)
        views[name].copy_(tensor)
        start += tensor.numel()
    return views
