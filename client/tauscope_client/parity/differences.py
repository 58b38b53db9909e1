"""How far two arrays of hidden states are apart: pure numpy, one plane at a time, in float32."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["PlaneDifference", "row_cosines", "row_differences"]

TINY: Final = 1e-30
"""Keeps a row of zeros from dividing by zero; its difference is then enormous, as it should be."""

Floats = npt.NDArray[np.float32]


def row_differences(found: npt.NDArray[Any], golden: npt.NDArray[Any]) -> Floats:
    """|found - golden| / |golden| of every row; arrays [rows, hidden], result float32 [rows]."""
    left, right = found.astype(np.float32), golden.astype(np.float32)
    ratios: Floats = np.linalg.norm(left - right, axis=-1) / np.maximum(np.linalg.norm(right, axis=-1), TINY)
    return ratios


def row_cosines(found: npt.NDArray[Any], golden: npt.NDArray[Any]) -> Floats:
    """Cosine of the angle between the rows; arrays [rows, hidden], result float32 [rows]."""
    left, right = found.astype(np.float32), golden.astype(np.float32)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    cosines: Floats = np.einsum("rh,rh->r", left, right) / np.maximum(norms, TINY)
    return cosines


@dataclass
class PlaneDifference:
    """One plane over all prompts so far.

    Attributes:
        plane: canonical layer id.
        num_rows: rows compared.
        squares_apart, squares: sums of squares of the difference and of the golden plane.
        worst: largest relative difference of a row, `worst_prompt` and `worst_position` say where.
        smallest_cosine: of a row.
        num_zero_rows: golden rows that are all zero.
    """

    plane: int
    num_rows: int = 0
    squares_apart: float = 0.0
    squares: float = 0.0
    worst: float = 0.0
    worst_prompt: int = 0
    worst_position: int = 0
    smallest_cosine: float = 1.0
    num_zero_rows: int = 0

    @property
    def relative_error(self) -> float:
        """Norm of the difference over the norm of the golden plane, all rows together."""
        return float(np.sqrt(self.squares_apart / max(self.squares, TINY)))

    def add(self, found: npt.NDArray[Any], golden: npt.NDArray[Any], prompt: int) -> None:
        """Take the rows [rows, hidden] of one more prompt in."""
        left, right = found.astype(np.float32), golden.astype(np.float32)
        rows = row_differences(left, right)
        self.num_rows += len(rows)
        self.squares_apart += float(np.sum((left - right) ** 2, dtype=np.float64))
        self.squares += float(np.sum(right**2, dtype=np.float64))
        self.num_zero_rows += int(np.sum(~right.any(axis=-1)))
        self.smallest_cosine = min(self.smallest_cosine, float(row_cosines(left, right).min()))
        position = int(np.argmax(rows))
        if rows[position] > self.worst:
            self.worst, self.worst_prompt, self.worst_position = float(rows[position]), prompt, position
