"""Reads the tensor bodies of SPEC.md into preallocated arrays and rejects everything that is not exactly right.

Nothing of a rejected body is returned: every problem raises a WireError with a stable code, the place, the value and
the bound. An `out` array may have been written to by then.
"""

from typing import Any

import numpy.typing as npt

from tauscope_wire.acceptance_reader import AcceptanceReader
from tauscope_wire.draft_reader import DraftReader
from tauscope_wire.expectations import DraftExpectation, HiddenExpectation
from tauscope_wire.hidden_reader import HiddenReader
from tauscope_wire.limits import DEFAULT_LIMITS, ReadLimits
from tauscope_wire.parser import PullParser
from tauscope_wire.source import Source
from tauscope_wire.tensors import AcceptanceAnswer, DraftAnswer, HiddenAnswer

__all__ = ["read_acceptance", "read_draft", "read_hidden"]


def read_hidden(
    source: Source,
    *,
    expect: HiddenExpectation | None = None,
    out: npt.NDArray[Any] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> HiddenAnswer:
    """Read an answer with hidden states.

    Args:
        source: has `readinto`; an open HTTP answer, a file, `io.BytesIO`.
        expect: what was asked for; None checks only that the answer agrees with itself.
        out: where the states go, [planes, positions, hidden] of the wire's dtype, C-contiguous and writable. Without
            it an array is made once shape and limits are checked.
        limits: bounds on what the answer may make us allocate.

    Returns:
        The answer; its `states` are `out` when that was given.

    Raises:
        WireError: `body_truncated`, `body_trailing`, `body_corrupt` (not this msgpack), `checksum_mismatch`,
            `non_finite_payload`, `label_mismatch` (disagrees with itself or with `expect`), `schema_unknown`,
            `limit_exceeded`, `answer_too_large`.
        ValueError: `out` cannot be filled.
    """
    if out is not None and not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"out of shape {out.shape} is not C-contiguous and writable")
    return HiddenReader(PullParser(source, limits), expect or HiddenExpectation(), out).read()


def read_draft(
    source: Source, *, expect: DraftExpectation | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> DraftAnswer:
    """Read an answer with drafts.

    Args:
        source: has `readinto`.
        expect: what was asked for; None checks only that the answer agrees with itself.
        limits: bounds on what the answer may make us allocate.

    Raises:
        WireError: as `read_hidden`.
    """
    return DraftReader(PullParser(source, limits), expect or DraftExpectation()).read()


def read_acceptance(
    source: Source, *, expect: DraftExpectation | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> AcceptanceAnswer:
    """Read an answer with expectations.

    Args:
        source: has `readinto`.
        expect: drafter and anchors that were asked for; None checks only that the answer agrees with itself.
        limits: bounds on what the answer may make us allocate.

    Raises:
        WireError: as `read_hidden`.
    """
    return AcceptanceReader(PullParser(source, limits), expect or DraftExpectation()).read()
