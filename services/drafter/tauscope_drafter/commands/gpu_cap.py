"""`--gpu-memory` of the service: choose where weights go before they are loaded, and hold the process to it."""

from collections.abc import Sequence
from pathlib import Path

import torch

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.reading import describe
from tauscope_drafter.checkpoint.sizes import drafter_sizes
from tauscope_drafter.placement import CONTEXT_BYTES, Placement, choose
from tauscope_drafter.target_weights import TargetFolder
from tauscope_wire.errors import RequestError


def place_on_gpu(
    drafters: Sequence[tuple[str, str, LoadOptions]], target_model: Path | None, cap: int, device: torch.device
) -> Placement:
    """Choose the fastest mode within `cap` bytes, and make the allocator refuse what goes beyond it.

    Raises:
        MismatchError: nothing fits.
        RequestError: no target, whose head decides.
    """
    if target_model is None:
        raise RequestError("--gpu-memory needs --target-model: embedding and head decide what fits")
    facts = TargetFolder(target_model).facts
    descriptions = [describe(Path(path), options, facts) for _, path, options in drafters]
    sizes = drafter_sizes(
        [d for d in descriptions if d.file is not None], head_rows=facts.vocab_size, head_width=facts.hidden_size
    )
    placement = choose(sizes, cap)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, cap - CONTEXT_BYTES) / total), device)
    return placement
