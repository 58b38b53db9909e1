"""Keeps `fla` out of a process that has no GPU to run it on.

transformers (5.19 and later) binds flash-linear-attention when a modelling file is imported, without asking for a GPU.
With `fla` and `triton` both importable (any CUDA build of torch brings triton) and no GPU, the first forward of a
Qwen3.5 model dies with "0 active drivers". An entry of None in `sys.modules` makes the import fail, and transformers
then takes its reference functions. Must run before the modelling file is imported, and only when no GPU will be used.

`triton` is kept out as well where nothing has imported it yet: only GPU kernels need it, and torch loads half of its
compiler when it finds it.
"""

import sys
from collections.abc import Callable, MutableMapping
from importlib.util import find_spec
from typing import Any, cast

from tauscope_wire.errors import ErrorCode, UnavailableError

KERNELS, COMPILER = "fla", "triton"


def triton_is_importable() -> bool:
    """Whether `import triton` would find something; imports nothing."""
    return find_spec("triton") is not None


def block_gpu_kernels(
    modules: MutableMapping[str, Any] | None = None, *, has_triton: Callable[[], bool] = triton_is_importable
) -> None:
    """Make `import fla` and `import triton` fail in this process.

    Args:
        modules: the module table; `sys.modules` by default.
        has_triton: asked when `fla` is imported already: without triton its kernels cannot have been bound.

    Raises:
        UnavailableError: `fla` was imported already, beside triton, so its kernels may be bound.
    """
    table: MutableMapping[str, Any] = cast(MutableMapping[str, Any], sys.modules) if modules is None else modules
    if table.get(KERNELS) is None:
        table[KERNELS] = None
        table.setdefault(COMPILER, None)
    elif has_triton():
        raise UnavailableError(
            "the fla package was imported before the service could choose the CPU: its GPU kernels would be called "
            "without a GPU. Start the service in a process of its own",
            ErrorCode.NOT_READY,
        )
