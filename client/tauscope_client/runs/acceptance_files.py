"""`expected/<drafter>/<prompt>.npz`: what sampling would accept at every anchor of one sampled text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_client.references.record import Reference
from tauscope_client.runs.array_files import check_belongs, read_arrays, write_arrays
from tauscope_client.runs.files import safe_name

__all__ = ["Acceptances", "acceptances_path", "has_acceptances", "read_acceptances", "write_acceptances"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Acceptances:
    """Acceptance of every draft position, 0 past the end of the text.

    Attributes:
        sampled: float64 [A, K], sum over tokens of min(p, q).
        greedy: float64 [A, K], p of the drafter's best token.
        facts: turn, sampling settings, warnings of the service.
    """

    sampled: npt.NDArray[np.float64]
    greedy: npt.NDArray[np.float64]
    facts: dict[str, Any]


def acceptances_path(run: Path, drafter: str, turn_id: str) -> Path:
    """Where the acceptances of one drafter on one turn are."""
    return run / "expected" / safe_name(drafter) / f"{safe_name(turn_id)}.npz"


def has_acceptances(run: Path, drafter: str, reference: Reference) -> bool:
    """Whether everything that a reference needs is there: greedy text and text without anchors need nothing."""
    is_needed = reference.temperature > 0 and len(reference.response_ids) > 1
    return not is_needed or acceptances_path(run, drafter, reference.id).exists()


def write_acceptances(path: Path, found: Acceptances) -> None:
    """Write atomically."""
    write_arrays(path, found.facts, sampled=found.sampled, greedy=found.greedy)


def read_acceptances(path: Path, reference: Reference) -> Acceptances:
    """Read.

    Raises:
        RequestError: the file is missing, damaged, or belongs to another text.
    """
    arrays, facts = read_arrays(path, ("sampled", "greedy"))
    check_belongs(path, facts, reference)
    return Acceptances(**arrays, facts=facts)
