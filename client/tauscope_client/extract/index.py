"""`index.jsonl`: which samples are finished. A file without a line here is not finished; a row has one line."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from tauscope_client.runs.files import JsonLines, write_text
from tauscope_wire.errors import CheckpointError

__all__ = ["Entry", "Index", "file_xxh3", "is_intact"]

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A finished sample.

    Attributes:
        row: of the sample.
        id: of the sample.
        path: of the file, below the output folder.
        nbytes: of the file.
        xxh3_128: of the file's bytes.
        digest: of the states as they came (XXH3-128 over planes, positions, hidden).
        num_tokens: of the sample.
        num_loss_tokens: of the sample.
        request_id: the service's name of the request, as in its log.
    """

    row: int
    id: str
    path: str
    nbytes: int
    xxh3_128: str
    digest: str
    num_tokens: int
    num_loss_tokens: int
    request_id: str


class Index:
    """The finished samples of a folder. One process writes it, which the folder's lock ensures."""

    def __init__(self, path: Path) -> None:
        """Read it; a line that a kill tore is cut off.

        Raises:
            CheckpointError: a line that this program did not write.
        """
        self._path = path
        self._lines = JsonLines(path)
        self.entries: dict[int, Entry] = {}
        for number, line in self._lines.lines():
            try:
                entry = Entry(**json.loads(line))
            except (ValueError, TypeError) as error:
                self._lines.close()
                raise CheckpointError(f"{path}:{number}: damaged; use another --out") from error
            self.entries[entry.row] = entry

    def add(self, entry: Entry) -> None:
        """A sample is finished; its file is on the disk."""
        self._lines.append(json.dumps(asdict(entry)))
        self.entries[entry.row] = entry

    def keep(self, wanted: Callable[[Entry], bool]) -> list[Entry]:
        """Forget the others; gives what was forgotten."""
        forgotten = [entry for entry in self.entries.values() if not wanted(entry)]
        if forgotten:
            gone = {entry.row for entry in forgotten}
            kept = {row: entry for row, entry in self.entries.items() if row not in gone}
            self._lines.close()
            write_text(self._path, "".join(json.dumps(asdict(entry)) + "\n" for entry in kept.values()))
            self._lines = JsonLines(self._path)
            self.entries = kept
        return forgotten

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def is_intact(folder: Path, entry: Entry) -> bool:
    """Whether the file of a sample is there with the bytes that were written."""
    path = folder / entry.path
    return path.is_file() and path.stat().st_size == entry.nbytes and file_xxh3(path) == entry.xxh3_128


def file_xxh3(path: Path) -> str:
    """XXH3-128 of a file."""
    state = xxhash.xxh3_128()
    for piece in _pieces(path):
        state.update(piece)
    return state.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
