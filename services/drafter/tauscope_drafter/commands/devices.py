"""Device and dtype from the words of the command line."""

import torch

from tauscope_wire.errors import RequestError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(word: str) -> torch.device:
    """`auto` is the first GPU, or the CPU without one.

    Raises:
        RequestError: no such device here.
    """
    if word == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(word)
    except RuntimeError as error:
        raise RequestError(f"--device {word!r}: write cpu, cuda, cuda:N or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise RequestError(f"--device {word!r}: only cpu and cuda are supported")
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise RequestError(f"--device {word!r}: {torch.cuda.device_count()} CUDA devices are visible; use --device cpu")
    return device


def choose_dtype(word: str, device: torch.device) -> torch.dtype:
    """`auto` is BF16 on a GPU and float32 on a CPU, where BF16 products are several times slower.

    Raises:
        RequestError: an unknown word.
    """
    if word == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if word not in _DTYPES:
        raise RequestError(f"--dtype {word!r}: write auto, {' or '.join(_DTYPES)}")
    return _DTYPES[word]
