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
        pinned = device.type == "cuda"
        self._weights = {
            name: t.to(device) if t.nbytes <= RESIDENT_BYTES else (t.pin_memory() if pinned else t)
            for name, t in weights.items()
        }

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
