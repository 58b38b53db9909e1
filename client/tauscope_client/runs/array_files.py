"""Files of named arrays and facts about them: npz, the facts as JSON among the arrays, written whole or not at all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_client.references.record import Reference
from tauscope_client.runs.files import write_atomically
from tauscope_wire.errors import RequestError

__all__ = ["check_belongs", "read_arrays", "write_arrays"]

_FACTS = "facts_json"


def write_arrays(path: Path, facts: dict[str, Any], **arrays: npt.NDArray[Any]) -> None:
    """Write atomically; `facts` must be strict JSON."""
    encoded = np.frombuffer(json.dumps(facts, allow_nan=False).encode(), dtype=np.uint8)
    named: dict[str, Any] = {**arrays, _FACTS: encoded}
    write_atomically(path, lambda file: np.savez_compressed(file, **named))


def read_arrays(path: Path, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays by name, and the facts.

    Raises:
        RequestError: the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in names}
            return arrays, json.loads(file[_FACTS].tobytes())
    except Exception as error:  # zip, zlib, numpy, json and the file system each have their own
        raise RequestError(
            f"{path}: damaged or missing ({type(error).__name__}); delete the file and run again"
        ) from error


def check_belongs(path: Path, facts: dict[str, Any], reference: Reference) -> None:
    """Make sure that a file is about a turn and its prompt.

    Raises:
        RequestError: it is about another one.
    """
    if (facts.get("turn_id"), facts.get("prompt_sha256")) != (reference.id, reference.prompt_sha256):
        raise RequestError(
            f"{path}: belongs to another text ({facts.get('turn_id')!r}) than {reference.id!r}; delete the file and "
            "run again"
        )
