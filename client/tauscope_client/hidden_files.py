"""Writes fetched hidden states to a file that other programs read: safetensors, or npz."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save

from tauscope_client.runs.files import write_atomically
from tauscope_wire.errors import RequestError
from tauscope_wire.tensors import HiddenAnswer

__all__ = ["NpzForm", "tensor_name", "write_states"]

NpzForm = Literal["float32", "uint16"]


def tensor_name(plane: int | str) -> str:
    """Name of a plane in the file: `layer.16` (canonical id: the output of layer 16), `layer.-1`, `final_norm`."""
    return plane if isinstance(plane, str) else f"layer.{plane}"


def write_states(path: Path, answer: HiddenAnswer, *, npz_form: NpzForm = "float32") -> None:
    """Write one tensor [positions, hidden] for each plane, `token_ids` [T], and what they are.

    Args:
        path: ends in `.safetensors` (keeps bfloat16) or `.npz`.
        answer: with its states.
        npz_form: npz knows no bfloat16: `float32` holds the same values in twice the space, `uint16` the raw bits
            (value = bits << 16, read as float32).

    Raises:
        RequestError: another ending, or an answer without states.
    """
    if answer.states is None:
        raise RequestError("the answer holds no states: ask for them inline")
    planes: dict[str, Any] = {tensor_name(plane): answer.plane(plane) for plane in answer.planes}
    facts = {
        "model": answer.model.id,
        "revision": answer.model.revision,
        "numerics": answer.numerics.model_dump_json(),
        "planes": json.dumps(list(answer.planes)),
        "positions": json.dumps(list(answer.positions)),
        "requested": json.dumps(answer.requested),
        "dtype": answer.dtype,
        "digest": answer.digest or "",
    }
    ids = answer.token_ids.astype(np.int32, copy=False)
    if path.suffix == ".safetensors":
        encoded = save({**planes, "token_ids": ids}, metadata=facts)
        write_atomically(path, lambda file: file.write(encoded))
    elif path.suffix == ".npz":
        if answer.dtype == "bfloat16":
            planes = {
                name: states.view(np.uint16) if npz_form == "uint16" else states.astype(np.float32)
                for name, states in planes.items()
            }
        blob = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        arrays: dict[str, Any] = {**planes, "token_ids": ids, "facts_json": blob}
        write_atomically(path, lambda file: np.savez(file, **arrays))
    else:
        raise RequestError(f"{path}: the name must end in .safetensors or .npz")
