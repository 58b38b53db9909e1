"""The compute loop: one thread owns the model, every queue is bounded, cancelled work never reaches the device.

Requests wait as tickets; a packing policy chooses which of them share the next pass; `execute` runs them. A pass that
fails fails its own tickets; the loop lives on.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from tauscope_serving.tickets import J, Pack, R, Ticket, fail, is_ours, nameless, own_copy
from tauscope_wire.errors import DeadlineError, ErrorCode, InternalError, UnavailableError

log = logging.getLogger(__name__)

__all__ = ["ComputeLoop", "J", "LoopState", "Pack", "R", "Ticket"]


@dataclass(frozen=True)
class LoopState:
    """A look at the loop, for readiness and metrics. Times in seconds."""

    is_alive: bool
    queued: int
    queued_cost: int
    running: int
    busy_s: float
    passes: int
    failed_passes: int
    consecutive_failures: int


class ComputeLoop(Generic[J, R]):
    """Runs jobs in passes on a thread of its own.

    Args:
        execute: computes one pass; gives one result or exception per job, in order. What it raises fails the pass.
        pack: chooses the tickets of the next pass from those waiting, oldest first; must choose at least one.
        max_queued: tickets that may wait; one more is refused with `queue_full`.
        gather_s: how long the oldest ticket may wait for company.
        gather_cost: waiting cost at which a pass starts at once; 0 never waits.
        on_pass: told the cost of each pass when it is done; called on the compute thread.
        clock: monotonic seconds.
        name: of the thread.
    """

    def __init__(
        self,
        execute: Callable[[Sequence[J]], Sequence[R | BaseException]],
        *,
        pack: Pack[J, R],
        max_queued: int,
        gather_s: float = 0.0,
        gather_cost: int = 0,
        on_pass: Callable[[int], None] = lambda cost: None,
        clock: Callable[[], float] = time.monotonic,
        name: str = "compute",
    ) -> None:
        self._execute = execute
        self._pack = pack
        self._max_queued = max_queued
        self._gather_s = gather_s
        self._gather_cost = gather_cost
        self._on_pass = on_pass
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[Ticket[J, R]] = []
        self._running: list[Ticket[J, R]] = []
        self._pass_started = 0.0
        self._passes = 0
        self._failed = 0
        self._consecutive = 0
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, *, drain_s: float = 0.0) -> None:
        """Refuse new work, give what is queued `drain_s` seconds, then fail the rest with `draining`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(drain_s)
        with self._changed:
            left, self._waiting = self._waiting, []
            self._changed.notify_all()
        for ticket in left:
            fail(ticket, UnavailableError("the service is stopping", ErrorCode.DRAINING))

    def submit(self, job: J, *, cost: int, caller: str = "", deadline_s: float) -> Ticket[J, R]:
        """Queue a job.

        Raises:
            UnavailableError: the queue is full (`queue_full`) or the service stops (`draining`).
        """
        now = self._clock()
        ticket: Ticket[J, R] = Ticket(job, cost, caller, now + deadline_s, now)
        with self._changed:
            if self._closing:
                raise UnavailableError("the service is stopping; use another replica", ErrorCode.DRAINING)
            self._waiting = [t for t in self._waiting if not t.is_cancelled]
            displaced = self._make_room(caller)
            self._waiting.append(ticket)
            self._changed.notify_all()
        if displaced is not None:
            fail(displaced, self._queue_full())
        return ticket

    def _make_room(self, caller: str) -> Ticket[J, R] | None:
        """Take the youngest ticket of the greediest caller out of a full queue, if `caller` holds clearly fewer.

        So a caller that floods the queue cannot lock others out; each always gets its share of the places.

        Raises:
            UnavailableError: full, and the caller has its share already.
        """
        if len(self._waiting) < self._max_queued:
            return None
        held = Counter(t.caller for t in self._waiting)
        greediest, most = held.most_common(1)[0] if held else (caller, 0)
        if held[caller] + 1 >= most:
            raise self._queue_full()
        displaced = next(t for t in reversed(self._waiting) if t.caller == greediest)
        self._waiting.remove(displaced)
        return displaced

    def _queue_full(self) -> UnavailableError:
        return UnavailableError(
            f"{self._max_queued} requests are queued and more may not be; try again later",
            ErrorCode.QUEUE_FULL,
            details={"queued": self._max_queued, "bound": self._max_queued},
        )

    async def run(self, job: J, *, cost: int, caller: str = "", deadline_s: float) -> R:
        """Queue a job and wait for its result; cancelling the caller cancels the ticket.

        Raises:
            DeadlineError: not done within `deadline_s`.
            UnavailableError: see `submit`.
            TauscopeError: whatever the pass raised for this job.
        """
        ticket = self.submit(job, cost=cost, caller=caller, deadline_s=deadline_s)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(ticket.future), deadline_s)
        except TimeoutError:
            raise DeadlineError(
                f"not done within {deadline_s:g} s; ask for less, or give a longer deadline_s",
                details={"deadline_s": deadline_s},
            ) from None

    def state(self) -> LoopState:
        """What the loop is doing now."""
        with self._changed:
            busy = self._clock() - self._pass_started if self._running else 0.0
            waiting = [t for t in self._waiting if not t.is_cancelled]
            return LoopState(
                is_alive=self._thread.is_alive(),
                queued=len(waiting),
                queued_cost=sum(t.cost for t in waiting),
                running=len(self._running),
                busy_s=busy,
                passes=self._passes,
                failed_passes=self._failed,
                consecutive_failures=self._consecutive,
            )

    def _loop(self) -> None:
        while (tickets := self._next_pass()) is not None:
            if tickets:
                self._run_pass(tickets)

    def _next_pass(self) -> list[Ticket[J, R]] | None:
        """Wait for work and take the next pass; None ends the loop. Expired and cancelled tickets are dropped here."""
        with self._changed:
            while True:
                self._drop_dead()
                if self._waiting:
                    wait_s = self._gather_left()
                    if wait_s <= 0:
                        break
                    self._changed.wait(wait_s)
                elif self._closing:
                    return None
                else:
                    self._changed.wait()
            chosen = [t for t in self._choose() if t.future.set_running_or_notify_cancel()]
            taken = set(map(id, chosen))
            self._waiting = [t for t in self._waiting if id(t) not in taken and not t.is_cancelled]
            self._running = chosen
            self._pass_started = self._clock()
            return chosen

    def _choose(self) -> list[Ticket[J, R]]:
        """What the policy picks; a policy that fails or picks nothing must not stop the loop: then the oldest goes."""
        waiting = tuple(self._waiting)
        try:
            picked = self._pack(waiting)
        except Exception as error:
            log.error("the packing policy failed", exc_info=error)
            picked = []
        known = {id(t): t for t in waiting}
        unique = {id(t): t for t in picked if id(t) in known}
        return list(unique.values()) or [waiting[0]]

    def _drop_dead(self) -> None:
        now = self._clock()
        for ticket in self._waiting:
            if now >= ticket.deadline:
                fail(ticket, DeadlineError("the deadline passed while the request was queued; the service is busy"))
        self._waiting = [t for t in self._waiting if not t.future.done()]

    def _gather_left(self) -> float:
        """Seconds that the next pass still waits for company."""
        if self._closing or self._gather_cost <= 0 or sum(t.cost for t in self._waiting) >= self._gather_cost:
            return 0.0
        return self._waiting[0].arrived + self._gather_s - self._clock()

    def _run_pass(self, tickets: list[Ticket[J, R]]) -> None:
        results: Sequence[R | BaseException]
        try:
            results = self._execute([t.job for t in tickets])
            if len(results) != len(tickets):
                raise InternalError(f"a pass of {len(tickets)} jobs gave {len(results)} results")
        except BaseException as error:  # also SystemExit: the thread must outlive whatever a pass does
            results = [own_copy(nameless(error)) for _ in tickets]
        failed = all(is_ours(r) for r in results)
        with self._changed:
            self._running = []
            self._passes += 1
            self._failed += failed
            self._consecutive = self._consecutive + 1 if failed else 0
        try:
            self._on_pass(sum(t.cost for t in tickets))
        except Exception as error:  # counting a pass is not worth the thread
            log.error("a pass could not be counted", exc_info=error)
        for ticket, result in zip(tickets, results, strict=True):
            if isinstance(result, BaseException):
                fail(ticket, nameless(result))
            else:
                ticket.future.set_result(result)  # a running future cannot be cancelled, so it is not done yet
