"""`pieces.json`: the text of every token that a report shows and that does not stand in a text itself."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tauscope_client.metrics import PromptResult
from tauscope_client.runs.draft_files import read_drafts
from tauscope_client.runs.files import write_json
from tauscope_client.runs.measuring import drafts_path

__all__ = ["add_pieces", "read_pieces", "shown_ids"]


def shown_ids(run: Path, measured: Mapping[str, Sequence[PromptResult]]) -> set[int]:
    """Ids of the drafts of every visited block, and of the candidates where the block first missed."""
    shown: set[int] = set()
    for drafter, prompts in measured.items():
        for prompt in prompts:
            if prompt.is_empty:
                continue
            drafts = read_drafts(drafts_path(run, drafter, prompt.prompt_id))
            rows = np.searchsorted(drafts.anchors, np.asarray(prompt.walk.anchors))
            shown.update(np.unique(drafts.token_ids[rows]).tolist())
            missed = np.minimum(np.asarray(prompt.walk.accepted), drafts.token_ids.shape[1] - 1)
            shown.update(np.unique(drafts.top_ids[rows, missed]).tolist())
    return shown


def add_pieces(run: Path, ids: Iterable[int], pieces_of: Callable[[list[int]], list[str]]) -> None:
    """Get the text of ids that are not known yet, and write the file.

    Args:
        run: the run folder.
        ids: what is shown.
        pieces_of: the target service's pieces for some ids.
    """
    known = read_pieces(run)
    wanted = sorted(set(ids) - set(known))
    if not wanted:
        return
    known.update(zip(wanted, pieces_of(wanted), strict=True))
    write_json(run / "pieces.json", {str(token): known[token] for token in sorted(known)})


def read_pieces(run: Path) -> dict[int, str]:
    """Pieces by id; empty when the run has none."""
    path = run / "pieces.json"
    return {int(token): piece for token, piece in json.loads(path.read_bytes()).items()} if path.exists() else {}
