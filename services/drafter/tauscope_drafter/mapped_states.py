"""States of a target service on this machine, mapped from the file it keeps them in: no copy, no payload over HTTP.

The target decides, by the key of the drafter's caller, whether a handle may be read, as it does over HTTP. Whatever is
not as expected (another machine, another user, an older service, a file that is gone or not the right one) ends here
with None, and the caller reads over HTTP.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from tauscope_serving.settings import is_loopback_host
from tauscope_wire.connection import Connection
from tauscope_wire.errors import ErrorCode, GoneError, TauscopeError, UnreachableError
from tauscope_wire.layers import Plane
from tauscope_wire.mapping import map_states
from tauscope_wire.messages import HiddenFile, ModelInfo, Numerics

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 60.0
"""A service that names no files is not asked before every read, and one that was restarted with files is found."""

_NO_FILES: Final = (ErrorCode.ROUTE_UNKNOWN, ErrorCode.MODE_CANNOT)
_NO_SERVICE: Final = (ErrorCode.UNREACHABLE, ErrorCode.TIMED_OUT)


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetStates:
    """Planes of a sequence from a target service, however they came.

    Attributes:
        states: [P, n, H], planes as asked for, row t of position t.
        token_ids: int32 [T], the whole sequence.
        model: of the target.
        numerics: of the target.
    """

    states: npt.NDArray[Any]
    token_ids: npt.NDArray[np.int32] = field(repr=False)
    model: ModelInfo
    numerics: Numerics


def is_on_this_machine(base_url: str) -> bool:
    """Whether an address can only be this machine's (or one end of a tunnel): a Unix socket, or loopback."""
    url = urlsplit(base_url)
    return url.scheme == "unix" or is_loopback_host(url.hostname or "")


class MappedReader:
    """Asks a target service for files and maps them. Safe to use from several threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._not_before = float("-inf")

    def read(
        self, connection: Connection, handle: str, planes: Sequence[Plane], num_rows: int, *, request_id: str | None
    ) -> TargetStates | None:
        """Planes of a handle for positions 0..num_rows-1, or None when they have to be read over HTTP.

        Planes that lie evenly spaced in the file are a view of it; any others are copied, only the rows asked for.

        Raises:
            GoneError: the handle is gone, or not the key's to read.
            UnreachableError: no service answers.
        """
        if self._clock() < self._not_before:
            return None
        try:
            named = connection.get_json(f"/hidden_states/{handle}/file", HiddenFile, request_id=request_id)
        except GoneError:
            raise
        except TauscopeError as error:
            if isinstance(error, UnreachableError) and error.code in _NO_SERVICE:
                raise
            if error.code in _NO_FILES and "handle" not in error.details:
                self._not_before = self._clock() + ASK_AGAIN_S
            return None
        if not set(planes) <= set(named.planes) or named.positions[0] or named.positions[1] < num_rows:
            return None  # over HTTP the service says what is wrong
        try:
            mapped = map_states(named)
        except TauscopeError as error:
            # not the message: it has a path of the other process
            log.info("a file of states cannot be used, reading over HTTP", extra={"fields": {"code": error.code}})
            return None
        order = [named.planes.index(plane) for plane in planes]
        return TargetStates(
            states=_chosen(mapped.states, order)[:, :num_rows],
            token_ids=mapped.token_ids,
            model=named.model,
            numerics=named.numerics,
        )


def _chosen(states: npt.NDArray[Any], order: list[int]) -> npt.NDArray[Any]:
    """Planes in an order; a view if they ascend evenly."""
    step = order[1] - order[0] if len(order) > 1 else 1
    if order and step > 0 and order == list(range(order[0], order[-1] + 1, step)):
        return states[order[0] : order[-1] + 1 : step]
    return states[order]
