"""`trees/<drafter>/<prompt>.npz`: wider rows at the anchors whose trees the stored candidates cannot decide."""

from pathlib import Path

import numpy as np

from tauscope_client.metrics import WideRows
from tauscope_client.references.record import Reference
from tauscope_client.runs.files import write_atomically
from tauscope_wire.errors import RequestError

__all__ = ["read_wide_rows", "write_wide_rows"]


def write_wide_rows(path: Path, rows: WideRows | None, reference: Reference) -> None:
    """Write atomically; without rows an empty file says that none are needed."""
    if rows is None:
        rows = WideRows(
            anchors=np.zeros(0, np.int32),
            top_ids=np.zeros((0, 1, 1), np.int32),
            top_logprobs=np.zeros((0, 1, 1), np.float32),
        )
    name = np.frombuffer(f"{reference.id}\n{reference.prompt_sha256}".encode(), dtype=np.uint8)
    write_atomically(
        path,
        lambda file: np.savez_compressed(
            file, anchors=rows.anchors, top_ids=rows.top_ids, top_logprobs=rows.top_logprobs, of=name
        ),
    )


def read_wide_rows(path: Path, reference: Reference) -> WideRows | None:
    """Read; None when no rows were needed.

    Raises:
        RequestError: the file is missing, damaged, or of another text.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            rows = WideRows(anchors=file["anchors"], top_ids=file["top_ids"], top_logprobs=file["top_logprobs"])
            of = file["of"].tobytes().decode()
    except Exception as error:  # zip, zlib, numpy and the file system each have their own
        raise RequestError(f"{path}: damaged or missing ({type(error).__name__}); delete it and run again") from error
    if of != f"{reference.id}\n{reference.prompt_sha256}":
        raise RequestError(f"{path}: belongs to another text than {reference.id!r}; delete the file and run again")
    return rows if rows.anchors.size else None
