"""One entry of the handle store as a safetensors file on disk: what is in it, and back."""

import json
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tauscope_target.checkpoint import read_header, read_metadata
from tauscope_target.stored import StoredStates
from tauscope_target.tensor_file import map_tensor
from tauscope_wire.errors import CheckpointError
from tauscope_wire.layers import FINAL_NORM
from tauscope_wire.tensors import LogitsSummary

SCHEMA = "tauscope.spill/1"


def owner_of(file: Path) -> str:
    """The key that made a file; a damaged file is nobody's."""
    try:
        return str(json.loads(read_metadata(file)["facts"])["owner"])
    except (CheckpointError, OSError, ValueError, KeyError, TypeError):
        return ""


def arrays_of(entry: StoredStates) -> dict[str, npt.NDArray[Any]]:
    """Tensors of the file, by name."""
    arrays: dict[str, npt.NDArray[Any]] = {"states": entry.states, "token_ids": entry.token_ids}
    if entry.logits is not None:
        arrays |= {
            "argmax_ids": entry.logits.argmax_ids,
            "top_ids": entry.logits.top_ids,
            "top_logprobs": entry.logits.top_logprobs,
        }
        if entry.logits.next_logprobs is not None:
            arrays["next_logprobs"] = entry.logits.next_logprobs
    return arrays


def metadata_of(entry: StoredStates, created: float) -> dict[str, str]:
    """Free text fields of the file; `created` in seconds since the epoch."""
    facts = {
        "planes": list(entry.planes),
        "dtype": entry.dtype,
        "start": entry.start,
        "owner": entry.owner,
        "shared": entry.shared,
        "digest": entry.digest,
        "created": created,
    }
    return {"schema": SCHEMA, "facts": json.dumps(facts)}


def decode(file: Path) -> StoredStates:
    """An entry over a mapped file.

    Raises:
        CheckpointError: not a file of stored states, or a damaged one.
        KeyError: facts or tensors that are missing.
    """
    metadata = read_metadata(file)
    if metadata.get("schema") != SCHEMA:
        raise CheckpointError(f"{file.name} is not a file of stored states")
    facts = json.loads(metadata["facts"])
    arrays = {entry.name: map_tensor(entry) for entry in read_header(file)}
    summary = None
    if "argmax_ids" in arrays:
        summary = LogitsSummary(
            argmax_ids=arrays["argmax_ids"],
            top_ids=arrays["top_ids"],
            top_logprobs=arrays["top_logprobs"],
            next_logprobs=arrays.get("next_logprobs"),
        )
    return StoredStates(
        planes=tuple(plane if plane == FINAL_NORM else int(plane) for plane in facts["planes"]),
        dtype=facts["dtype"],
        token_ids=arrays["token_ids"],
        start=int(facts["start"]),
        states=arrays["states"],
        logits=summary,
        owner=facts["owner"],
        shared=bool(facts["shared"]),
        digest=facts["digest"],
    )
