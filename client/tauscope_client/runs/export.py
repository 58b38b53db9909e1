"""A run as tables for spreadsheets and notebooks."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tauscope_client.runs.files import write_text
from tauscope_client.runs.loading import Run

__all__ = ["write_csv"]


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
