"""`drafts/<drafter>/<prompt>.npz` and `target/<prompt>.npz`: what the services answered for one prompt."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_client.runs.array_files import read_arrays, write_arrays

__all__ = ["Drafts", "TargetView", "read_drafts", "read_target", "write_drafts", "write_target"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Drafts:
    """What one drafter drafted on one prompt.

    Attributes:
        anchors: int32 [A].
        token_ids: int32 [A, K].
        top_ids: int32 [A, K, k].
        top_logprobs: float32 [A, K, k].
        facts: drafter hash, digest of the hidden states, timing, warnings.
    """

    anchors: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetView:
    """What the target itself would have said at each response position.

    Attributes:
        argmax_ids: int32 [R], its own choice for each response token.
        top_ids: int32 [R, k], best first.
        top_logprobs: float32 [R, k].
        response_logprobs: float32 [R], log-probability of each response token.
        facts: handle, digest, timing.
    """

    argmax_ids: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    response_logprobs: npt.NDArray[np.float32]
    facts: dict[str, Any]


def write_drafts(path: Path, drafts: Drafts) -> None:
    """Write atomically."""
    write_arrays(
        path,
        drafts.facts,
        anchors=drafts.anchors,
        token_ids=drafts.token_ids,
        top_ids=drafts.top_ids,
        top_logprobs=drafts.top_logprobs,
    )


def read_drafts(path: Path) -> Drafts:
    """Read.

    Raises:
        RequestError: the file is missing or damaged.
    """
    arrays, facts = read_arrays(path, ("anchors", "token_ids", "top_ids", "top_logprobs"))
    return Drafts(**arrays, facts=facts)


def write_target(path: Path, view: TargetView) -> None:
    """Write atomically."""
    write_arrays(
        path,
        view.facts,
        argmax_ids=view.argmax_ids,
        top_ids=view.top_ids,
        top_logprobs=view.top_logprobs,
        response_logprobs=view.response_logprobs,
    )


def read_target(path: Path) -> TargetView:
    """Read.

    Raises:
        RequestError: the file is missing or damaged.
    """
    arrays, facts = read_arrays(path, ("argmax_ids", "top_ids", "top_logprobs", "response_logprobs"))
    return TargetView(**arrays, facts=facts)
