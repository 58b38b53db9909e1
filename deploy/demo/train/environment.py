"""Where a training ran: versions and the device, for the cards."""

from importlib import metadata

import torch


def environment(device: str) -> dict[str, str]:
    """Versions and the device, for the card."""
    names = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "flash-linear-attention", "triton")
    found: dict[str, str] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
