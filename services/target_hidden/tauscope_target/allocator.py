"""A setting of torch's allocator that must be made before torch starts CUDA."""

from collections.abc import MutableMapping

SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Names of the variable: that of all versions, and the newer one."""


def prefer_expandable_segments(environ: MutableMapping[str, str]) -> None:
    """Let segments grow: memory that is free but held in blocks of the wrong size counts against the cap, too.

    Args:
        environ: variables of this process; where the operator has set the allocator up, nothing is changed.
    """
    if not any(name in environ for name in SETTINGS):
        environ[SETTINGS[0]] = "expandable_segments:True"
