"""Paths that callers name stay inside the folders that the operator allows."""

from collections.abc import Sequence
from pathlib import Path

from tauscope_drafter.checkpoint.files import find_files
from tauscope_wire.errors import ErrorCode, PermissionDeniedError


def confined(path: Path, roots: Sequence[Path]) -> Path:
    """`path` with links resolved, if it and all its files lie under a root.

    Raises:
        PermissionDeniedError: they do not.
    """
    resolved = path.resolve()
    homes = [root.resolve() for root in roots]
    inside = any(resolved.is_relative_to(home) for home in homes)
    if inside and all(any(f.resolve().is_relative_to(home) for home in homes) for f in find_files(resolved)):
        return resolved
    raise PermissionDeniedError(
        "the path leaves the folders drafters may be loaded from; ask the operator for --root",
        ErrorCode.PATH_OUTSIDE_ROOTS,
    )
