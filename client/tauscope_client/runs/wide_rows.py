"""`trees/<drafter>/<prompt>.npz`: wider rows at the anchors whose trees the stored candidates cannot decide."""

from pathlib import Path

import numpy as np

from tauscope_client.metrics import WideRows
from tauscope_client.references.record import Reference
from tauscope_client.runs.array_files import check_belongs, read_arrays, write_arrays

__all__ = ["read_wide_rows", "write_wide_rows"]


def write_wide_rows(path: Path, rows: WideRows | None, reference: Reference) -> None:
    """Write atomically; without rows an empty file says that none are needed."""
    if rows is None:
        rows = WideRows(
            anchors=np.zeros(0, np.int32),
            top_ids=np.zeros((0, 1, 1), np.int32),
            top_logprobs=np.zeros((0, 1, 1), np.float32),
        )
    facts = {"turn_id": reference.id, "prompt_sha256": reference.prompt_sha256}
    write_arrays(path, facts, anchors=rows.anchors, top_ids=rows.top_ids, top_logprobs=rows.top_logprobs)


def read_wide_rows(path: Path, reference: Reference) -> WideRows | None:
    """Read; None when no rows were needed.

    Raises:
        RequestError: the file is missing, damaged, or of another text.
    """
    arrays, facts = read_arrays(path, ("anchors", "top_ids", "top_logprobs"))
    check_belongs(path, facts, reference)
    rows = WideRows(**arrays)
    return rows if rows.anchors.size else None
