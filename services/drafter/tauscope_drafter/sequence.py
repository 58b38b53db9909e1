"""Whether a request speaks of the sequence that its handle was made of. Knows no torch."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tauscope_wire.errors import ErrorCode, RequestError

Ids = npt.NDArray[np.integer]


def check_sequence(held: Ids, sent: Ids | Sequence[int], num_rows: int) -> None:
    """Refuse the handle of another sequence, or one that is too short.

    All ids that both have are compared, not the context's alone: labels and anchors are read from the request.

    Args:
        held: [T], ids that the handle's states were computed from.
        sent: [n], ids of the request; it may end before the handle or go on after it.
        num_rows: positions of the handle that are needed.

    Raises:
        RequestError: the handle holds fewer positions, or other ids; `details` has the first position that differs.
    """
    if len(held) < num_rows:
        raise RequestError(
            f"the handle holds {len(held)} positions, {num_rows} are needed for the last anchor",
            ErrorCode.POSITION_OUT_OF_RANGE,
        )
    common = min(len(held), len(sent))
    differs = np.flatnonzero(np.asarray(held[:common]) != np.asarray(sent[:common], dtype=np.int64))
    if len(differs):
        first = int(differs[0])
        raise RequestError(
            f"token_ids differ from those of the handle from position {first} on ({int(sent[first])} in the request, "
            f"{int(held[first])} in the handle); use the handle of this sequence",
            details={"position": first, "request": int(sent[first]), "handle": int(held[first])},
        )
