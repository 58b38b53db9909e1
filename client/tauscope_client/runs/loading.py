"""A finished (or unfinished) run, read back: for `compare`, for the report, and for notebooks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tauscope_client.metrics import PromptResult, Trace
from tauscope_client.references.record import Reference
from tauscope_client.references.stored import read_references
from tauscope_client.runs.draft_files import Drafts, TargetView, read_drafts, read_target
from tauscope_client.runs.folder import read_manifest
from tauscope_client.runs.manifest import Manifest
from tauscope_client.runs.measuring import drafts_path, measure_turn, target_path
from tauscope_client.runs.pieces import read_pieces
from tauscope_client.runs.traces import trace_of_files
from tauscope_wire.errors import ErrorCode, NotFoundError, RequestError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "load_run"]


def load_run(path: str | Path) -> "Run":
    """Read a run folder; arrays are read when they are asked for.

    Example:
        >>> run = load_run("runs/x")
        >>> run.results["drafters"]["step20k"]["overall"]["values"]["tau"]
        >>> run.rounds()  # a pandas data frame, one row a round

    Raises:
        RequestError: no run there.
    """
    folder = Path(path)
    return Run(folder, read_manifest(folder))


@dataclass(frozen=True)
class Run:
    """A run folder.

    Attributes:
        path: the folder.
        manifest: what the run was made with.
    """

    path: Path
    manifest: Manifest

    @property
    def drafters(self) -> list[str]:
        """Names of the drafters."""
        return list(self.manifest.drafters)

    @cached_property
    def references(self) -> dict[str, Reference]:
        """References by turn id, in the order they were finished."""
        found = read_references(self.path / "references.jsonl", tolerate_torn_end=True)
        return {reference.id: reference for reference in found}

    @cached_property
    def texts(self) -> dict[str, list[str]]:
        """Pieces of text by turn id, one for each token of prompt, response and tail; turns without are missing."""
        path = self.path / "texts.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        return {entry["id"]: entry["pieces"] for entry in map(json.loads, filter(_is_whole, lines))}

    @cached_property
    def pieces(self) -> dict[int, str]:
        """Text of the drafted tokens that reports show, by id."""
        return read_pieces(self.path)

    @cached_property
    def results(self) -> dict[str, Any]:
        """The content of `results.json`.

        Raises:
            RequestError: the run was not finished.
        """
        try:
            value: dict[str, Any] = json.loads((self.path / "results.json").read_bytes())
        except OSError as error:
            raise RequestError(f"{self.path}: the run is not finished (no results.json): continue it first") from error
        return value

    @property
    def turn_ids(self) -> list[str]:
        """Turns that every drafter has finished, in the order of the results."""
        first: dict[str, Any] = next(iter(self.results["drafters"].values()), {"prompts": []})
        return [prompt["prompt_id"] for prompt in first["prompts"]]

    def prompt(self, drafter: str, turn_id: str) -> dict[str, Any]:
        """The entry of one drafter on one turn in the results."""
        return self._prompts[drafter, turn_id]

    @cached_property
    def _prompts(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {
            (name, prompt["prompt_id"]): prompt
            for name, drafter in self.results["drafters"].items()
            for prompt in drafter["prompts"]
        }

    def drafts(self, drafter: str, turn_id: str) -> Drafts:
        """Drafts of one drafter on one turn."""
        return read_drafts(drafts_path(self.path, drafter, turn_id))

    def target_view(self, turn_id: str) -> TargetView | None:
        """The target's own choices on one turn, None when its head was not loaded."""
        path = target_path(self.path, turn_id)
        return read_target(path) if path.exists() else None

    def trace(self, drafter: str, turn_id: str) -> Trace:
        """Arrays of one drafter on one turn."""
        return trace_of_files(
            self.references[turn_id], drafts_path(self.path, drafter, turn_id), target_path(self.path, turn_id)
        )

    def measured(self, drafter: str) -> list[PromptResult]:
        """Every finished turn of one drafter, measured."""
        budgets = self.manifest.settings_in_force.get("tree_budgets", [])
        vocab_size = self.manifest.target["model"]["vocab_size"]
        return [
            measure_turn(self.path, self.references[turn_id], drafter, tree_budgets=budgets, vocab_size=vocab_size)
            for turn_id in self.turn_ids
        ]

    def check_drafter(self, name: str) -> str:
        """The name, when the run has it.

        Raises:
            NotFoundError: it has not; names those it has.
        """
        if name not in self.drafters:
            have = ", ".join(self.drafters)
            raise NotFoundError(
                f"{self.path}: no drafter {name!r} in this run; it has {have}", ErrorCode.DRAFTER_UNKNOWN
            )
        return name

    def prompt_rows(self) -> list[dict[str, Any]]:
        """One row for each drafter and prompt: its tags, its counts, and every value."""
        return [
            {
                "drafter": name,
                "prompt_id": prompt["prompt_id"],
                **{f"tag_{tag}": value for tag, value in prompt["tags"].items()},
                "prompt_tokens": prompt["prompt_tokens"],
                "response_tokens": prompt["response_tokens"],
                "num_rounds": len(prompt["accepted"]),
                **prompt["values"],
            }
            for name, drafter in self.results["drafters"].items()
            for prompt in drafter["prompts"]
        ]

    def round_rows(self) -> list[dict[str, Any]]:
        """One row for each round of each walk."""
        return [
            {
                "drafter": name,
                "prompt_id": prompt["prompt_id"],
                "round": number,
                "anchor": anchor,
                "accepted": accepted,
                "emitted": emitted,
                "drafted": drafted,
            }
            for name, drafter in self.results["drafters"].items()
            for prompt in drafter["prompts"]
            for number, (anchor, accepted, emitted, drafted) in enumerate(
                zip(prompt["anchors"], prompt["accepted"], prompt["emitted"], prompt["drafted"], strict=True), start=1
            )
        ]

    def prompts(self) -> "pd.DataFrame":
        """`prompt_rows` as a pandas data frame.

        Raises:
            RequestError: pandas is not installed (`pip install 'tauscope[report]'`).
        """
        return _frame(self.prompt_rows())

    def rounds(self) -> "pd.DataFrame":
        """`round_rows` as a pandas data frame; errors as `prompts`."""
        return _frame(self.round_rows())


def _frame(rows: Sequence[dict[str, Any]]) -> "pd.DataFrame":
    try:
        import pandas as pd
    except ImportError as error:
        raise RequestError("data frames need pandas: pip install 'tauscope[report]'") from error
    return pd.DataFrame(list(rows))


def _is_whole(line: str) -> bool:
    return line.endswith("}")
