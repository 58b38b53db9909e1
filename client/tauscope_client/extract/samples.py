"""`samples.jsonl`: the texts as ids, in the order of the data set, before anything is extracted.

A line is an accepted sample, or a refused text with the reason; a last line says that all are there. Only the places of
the lines are kept in memory.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tauscope_client.extract.sample import Sample
from tauscope_wire.errors import CheckpointError

__all__ = ["Refused", "SampleTable", "refused_line"]

END_LINE = '{"end": true}'


@dataclass(frozen=True)
class Refused:
    """A text that is not extracted."""

    id: str
    reason: str


def refused_line(refused: Refused) -> str:
    """One line of JSON."""
    return json.dumps({"id": refused.id, "refused": refused.reason})


class SampleTable:
    """The accepted samples by row, read from the file when they are asked for.

    Attributes:
        num_tokens: of each row.
        num_loss_tokens: of each row.
        refused: the texts that are left out.
        is_complete: whether the last line is there.
        num_lines: lines read, the last one not counted.
    """

    def __init__(self, path: Path) -> None:
        """Read the file once.

        Raises:
            CheckpointError: a line that this program did not write.
        """
        self._path = path
        self._places: list[int] = []
        self.num_tokens: list[int] = []
        self.num_loss_tokens: list[int] = []
        self.refused: list[Refused] = []
        self.is_complete = False
        self.num_lines = 0
        place = 0
        with path.open("rb") as file:
            for raw in file:
                self._add(raw, place)
                place += len(raw)

    def _add(self, raw: bytes, place: int) -> None:
        try:
            fields = json.loads(raw)
            if fields.get("end"):
                self.is_complete = True
                return
            self.num_lines += 1
            if "refused" in fields:
                self.refused.append(Refused(fields["id"], fields["refused"]))
                return
            sample = Sample.from_fields(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{self._path}: damaged at byte {place}; use another --out") from error
        self._places.append(place)
        self.num_tokens.append(sample.num_tokens)
        self.num_loss_tokens.append(sample.num_loss_tokens)

    def __len__(self) -> int:
        """Accepted samples."""
        return len(self._places)

    def read(self, row: int) -> Sample:
        """One sample."""
        with self._path.open("rb") as file:
            file.seek(self._places[row])
            return Sample.from_fields(json.loads(file.readline()))

    def __iter__(self) -> Iterator[Sample]:
        """All of them, in order."""
        return map(self.read, range(len(self)))
