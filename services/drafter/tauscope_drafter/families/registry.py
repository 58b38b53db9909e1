"""The families there are, by name. Add a module here and it can be loaded, inspected and converted."""

from importlib import import_module
from types import ModuleType

from tauscope_drafter.families.names import FAMILIES
from tauscope_wire.errors import CheckpointError, ErrorCode


def family(name: str) -> ModuleType:
    """The module of a family.

    Raises:
        CheckpointError: no such family; lists those there are.
    """
    if name not in FAMILIES:
        raise CheckpointError(
            f"family {name!r} is not known; known are {', '.join(FAMILIES)}", ErrorCode.CHECKPOINT_UNSUPPORTED
        )
    return import_module(f"tauscope_drafter.families.{name}")
