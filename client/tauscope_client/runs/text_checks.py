"""Signs in the token ids of an answer that its numbers need care."""

from collections.abc import Sequence

import numpy as np

__all__ = ["is_looping"]

# A loop is looked for in the last tokens of an answer: short enough that an answer which only ends in one counts, long
# enough that a list or a table does not.
WINDOW = 64
MIN_REPEATS = 3
NEARLY_ALL = 0.95


def is_looping(ids: Sequence[int]) -> bool:
    """Whether the last tokens repeat one piece at least three times, a token here and there apart."""
    tail = np.asarray(ids[-WINDOW:])
    if tail.size < WINDOW:
        return False
    return any(
        bool((tail[period:] == tail[:-period]).mean() >= NEARLY_ALL) for period in range(1, WINDOW // MIN_REPEATS + 1)
    )
