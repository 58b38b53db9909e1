"""Tickets: jobs that wait for a pass, and how they fail."""

import contextlib
import copy
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tauscope_wire.errors import InternalError, TauscopeError

log = logging.getLogger(__name__)

J = TypeVar("J")
R = TypeVar("R")


@dataclass(eq=False)
class Ticket(Generic[J, R]):
    """One job that waits for its pass.

    Attributes:
        job: what to compute.
        cost: its size in the unit of the packing budget (tokens).
        caller: who asked, for fairness.
        deadline: clock reading after which nobody wants the result.
        arrived: clock reading when it was queued.
    """

    job: J
    cost: int
    caller: str
    deadline: float
    arrived: float
    future: "Future[R]" = field(default_factory=Future)

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone."""
        return self.future.cancelled()


Pack = Callable[[Sequence[Ticket[J, R]]], list[Ticket[J, R]]]


def is_ours(result: object) -> bool:
    """Whether a job failed by a fault of the service. A refused request says nothing about the device."""
    return isinstance(result, InternalError) or (
        isinstance(result, BaseException) and not isinstance(result, TauscopeError)
    )


def nameless(error: BaseException) -> TauscopeError:
    """What a caller may see of an exception: errors made on purpose as they are, anything else without its text."""
    if isinstance(error, TauscopeError):
        return error
    log.error("a pass failed", exc_info=error)
    return InternalError("the pass failed; the log of the service says why")


def own_copy(error: TauscopeError) -> TauscopeError:
    """One exception raised in several tasks would collect all their tracebacks, and keep their frames alive."""
    try:
        return copy.copy(error)
    except Exception:
        return error


def fail(ticket: Ticket[J, R], error: BaseException) -> None:
    """Give a ticket its error, unless it is done or cancelled already."""
    with contextlib.suppress(InvalidStateError):  # cancelled by its caller at this very moment
        ticket.future.set_exception(error)
