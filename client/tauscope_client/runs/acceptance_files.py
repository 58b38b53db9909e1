"""`expected/<drafter>/<prompt>.npz`: what sampling would accept at every anchor of one sampled text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_client.references.record import Reference
from tauscope_client.runs.files import safe_name, write_atomically
from tauscope_wire.errors import ErrorCode, RequestError

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
    encoded = np.frombuffer(json.dumps(found.facts, allow_nan=False).encode(), dtype=np.uint8)
    write_atomically(
        path, lambda file: np.savez_compressed(file, sampled=found.sampled, greedy=found.greedy, facts_json=encoded)
    )


def read_acceptances(path: Path, reference: Reference) -> Acceptances:
    """Read.

    Raises:
        RequestError: the file is missing, damaged, or belongs to another text.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(file["facts_json"].tobytes())
            found = Acceptances(sampled=file["sampled"], greedy=file["greedy"], facts=facts)
    except Exception as error:  # zip, zlib, numpy, json and the file system each have their own
        raise RequestError(
            f"{path}: damaged or missing ({type(error).__name__}); delete the file and run again",
            ErrorCode.INVALID_REQUEST,
        ) from error
    if (facts.get("turn_id"), facts.get("prompt_sha256")) != (reference.id, reference.prompt_sha256):
        raise RequestError(
            f"{path}: belongs to {facts.get('turn_id')!r} with another prompt, not to {reference.id!r}; "
            "delete the file and run again"
        )
    return found
