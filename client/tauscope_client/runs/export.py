"""A run as tables for spreadsheets and notebooks."""

import csv
import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tauscope_client.runs.files import write_atomically, write_text
from tauscope_client.runs.loading import Run
from tauscope_wire.errors import RequestError

__all__ = ["write_csv", "write_parquet"]


def write_csv(run: Run, folder: Path | None = None) -> list[Path]:
    """Write `prompts.csv` (one row a drafter and prompt) and `rounds.csv` (one row a round).

    Args:
        run: a finished run.
        folder: where to, the run folder by default.

    Returns:
        The files.

    Raises:
        RequestError: the run is not finished.
    """
    place = folder if folder is not None else run.path
    written = []
    for name, rows in (("prompts.csv", run.prompt_rows()), ("rounds.csv", run.round_rows())):
        write_text(place / name, _csv(rows))
        written.append(place / name)
    return written


def write_parquet(run: Run, folder: Path | None = None) -> list[Path]:
    """Write `prompts.parquet` and `rounds.parquet`, the same tables with their types.

    Raises:
        RequestError: the run is not finished, or pyarrow is not installed (`pip install 'tauscope[report]'`).
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError("Parquet needs pyarrow: pip install 'tauscope[report]'") from error
    place = folder if folder is not None else run.path
    written = []
    for name, rows in (("prompts.parquet", run.prompt_rows()), ("rounds.parquet", run.round_rows())):
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        write_atomically(place / name, partial(parquet.write_table, table))
        written.append(place / name)
    return written


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _inert(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value
