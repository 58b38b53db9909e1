"""Small numbers from the host to the device without waiting for it."""

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(values: Sequence[int], device: torch.device) -> Tensor:
    """int64 [n] on the device.

    A plain copy to a GPU waits until all work queued there is done, and the device then waits for the next launch;
    from pinned memory it takes its turn in the queue.
    """
    here = torch.tensor(values)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)
