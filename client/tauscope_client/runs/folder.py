"""The layout of a run folder, and opening one: new, resumed, or refused.

manifest.json                    what the run was made with
references.jsonl                 one line a turn, in the order they were finished
texts.jsonl                      the same turns as pieces of text, for the report
target/<prompt>.npz              the target's own choice at each response position
drafts/<drafter>/<prompt>.npz    the drafts at every anchor
expected/<drafter>/<prompt>.npz  what sampling would accept, for sampled references only
trees/<drafter>/<prompt>.npz     wider rows at anchors whose trees the drafts cannot decide
stability.json                   whether the reference server repeats itself
failures.json                    prompts that could not be evaluated, and why
results.json, summary.md         the numbers
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from tauscope_client.references.record import Reference
from tauscope_client.references.stability import Stability
from tauscope_client.runs.files import JsonLines, write_json
from tauscope_client.runs.lock import FolderLock
from tauscope_client.runs.manifest import Manifest
from tauscope_client.runs.measuring import drafts_path, target_path, wide_rows_path
from tauscope_wire.errors import RequestError

__all__ = ["RunFolder", "read_manifest"]


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a run folder.

    Raises:
        RequestError: no run there, or one of another schema.
    """
    file = path / "manifest.json"
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise RequestError(f"{path}: no run there (no manifest.json)") from error
    except (OSError, ValidationError) as error:
        raise RequestError(f"{file}: not a manifest of this version of tauscope") from error


class RunFolder:
    """A run folder, open for writing by this process alone. Use as a context manager."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Name the folder and what the run is made with; nothing happens yet."""
        self.path = path
        self.manifest = manifest
        self.is_resumed = False
        self._lock = FolderLock(path)
        self._references: JsonLines | None = None
        self._texts: JsonLines | None = None

    def __enter__(self) -> Self:
        """Take the folder.

        Raises:
            RequestError: the folder holds something else.
            MismatchError: another process writes there, or the run there has other settings.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RequestError(f"{self.path}: is a file; give a folder with --out")
        strangers = [] if not self.path.exists() else [p.name for p in self.path.iterdir() if p.name != ".lock"]
        if strangers and "manifest.json" not in strangers:
            raise RequestError(f"{self.path}: not empty and not a run folder; give another folder with --out")
        self._lock.__enter__()
        try:
            if strangers:
                before = read_manifest(self.path)
                before.check_resume(self.manifest, folder=str(self.path))
                self.is_resumed = True
                self.manifest = self.manifest.model_copy(update={"created_at": before.created_at})
            self.write_manifest()
            self._references = JsonLines(self.path / "references.jsonl")
            self._texts = JsonLines(self.path / "texts.jsonl")
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files and give the folder up."""
        for file in (self._references, self._texts):
            if file is not None:
                file.close()
        self._lock.__exit__(kind, error, trace)

    def write_manifest(self) -> None:
        """Write `manifest.json`."""
        write_json(self.path / "manifest.json", self.manifest.model_dump(mode="json", by_alias=True))

    def finished_references(self) -> dict[str, Reference]:
        """References that are there already, by turn id.

        Raises:
            RequestError: a line that is not a reference.
        """
        assert self._references is not None
        found: dict[str, Reference] = {}
        for number, line in self._references.lines():
            try:
                reference = Reference.model_validate_json(line)
            except ValidationError as error:
                raise RequestError(f"{self._references.path}:{number}: not a reference; delete the line") from error
            found[reference.id] = reference
        return found

    def add_reference(self, reference: Reference) -> None:
        """Append a finished reference."""
        assert self._references is not None
        self._references.append(reference.model_dump_json(by_alias=True))

    def finished_texts(self) -> set[str]:
        """Turns whose pieces of text are there already."""
        assert self._texts is not None
        return {json.loads(line)["id"] for _, line in self._texts.lines()}

    def add_text(self, turn_id: str, pieces: list[str]) -> None:
        """Append the pieces of one turn: one for each token of prompt, response and tail."""
        assert self._texts is not None
        self._texts.append(json.dumps({"id": turn_id, "pieces": pieces}, ensure_ascii=False))

    def drafts_path(self, drafter: str, turn_id: str) -> Path:
        """Where the drafts of one drafter on one turn are."""
        return drafts_path(self.path, drafter, turn_id)

    def wide_rows_path(self, drafter: str, turn_id: str) -> Path:
        """Where the wider rows for trees are."""
        return wide_rows_path(self.path, drafter, turn_id)

    def target_path(self, turn_id: str) -> Path:
        """Where the target's own choices on one turn are."""
        return target_path(self.path, turn_id)

    def stability(self) -> Stability | None:
        """What asking the reference server again gave, None when it was not asked."""
        path = self.path / "stability.json"
        return Stability.from_dict(json.loads(path.read_bytes())) if path.exists() else None

    def write_stability(self, stability: Stability) -> None:
        """Write `stability.json`."""
        write_json(self.path / "stability.json", stability.to_dict())

    def write_failures(self, failures: list[dict[str, Any]]) -> None:
        """Write `failures.json`, or remove it when nothing failed."""
        path = self.path / "failures.json"
        if failures:
            write_json(path, failures)
        else:
            path.unlink(missing_ok=True)
