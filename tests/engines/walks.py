"""Rounds of another program's loop beside ours, for the same text."""

from collections.abc import Sequence

__all__ = ["cut_rounds"]


def cut_rounds(emitted: Sequence[int], limit: int) -> list[int]:
    """Rounds up to a length limit: the first response token is not counted, the last round is cut at the limit.

    The package's loop is run for one block longer than wanted, because it drafts shorter blocks near its own limit.
    """
    kept, left = [], limit - 1
    for tokens in emitted:
        if left <= 0:
            break
        kept.append(min(tokens, left))
        left -= kept[-1]
    return kept
