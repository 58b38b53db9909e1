"""One text of a data set: its ids, and which of them the model answered."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Sample", "spans_of"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One text.

    Attributes:
        id: unique in the data set.
        row: its place among the accepted samples, from 0; the file's name is made of it.
        token_ids: the whole text.
        spans: half-open ranges of positions that count for the loss, ascending and apart.
    """

    id: str
    row: int
    token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the text."""
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that count for the loss."""
        return sum(stop - start for start, stop in self.spans)

    def ids(self) -> npt.NDArray[np.int64]:
        """[T] int64."""
        return np.asarray(self.token_ids, np.int64)

    def loss_mask(self) -> npt.NDArray[np.int64]:
        """[T] int64, 1 where a token counts for the loss."""
        mask = np.zeros(self.num_tokens, np.int64)
        for start, stop in self.spans:
            mask[start:stop] = 1
        return mask

    def cut(self, max_tokens: int) -> "Sample":
        """The first tokens of the text."""
        spans = tuple((start, min(stop, max_tokens)) for start, stop in self.spans if start < max_tokens)
        return Sample(id=self.id, row=self.row, token_ids=self.token_ids[:max_tokens], spans=spans)

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps({"id": self.id, "row": self.row, "spans": self.spans, "token_ids": self.token_ids})

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Sample":
        """Of the fields of such a line."""
        return cls(
            id=fields["id"],
            row=fields["row"],
            token_ids=tuple(fields["token_ids"]),
            spans=tuple((start, stop) for start, stop in fields["spans"]),
        )


def spans_of(mask: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ranges of ones in a mask of zeros and ones."""
    steps = np.diff(np.concatenate([[0], np.asarray(mask, np.int8), [0]]))
    starts, stops = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))
