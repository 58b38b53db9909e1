"""One sentence about whether the reference server repeats itself, for tables and pages."""

from collections.abc import Mapping
from typing import Any

__all__ = ["stability_line"]


def stability_line(results: Mapping[str, Any]) -> list[str]:
    """The sentence; none when nothing was asked again, or when a warning says more."""
    found = results.get("stability")
    return (
        [] if found is None or found["unrepeated"] else [f"does the reference server repeat itself? {found['words']}"]
    )
