"""The compute loop: whatever is mixed, failed or cancelled, each caller gets its own result and the loop lives on."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauscope_serving.compute import ComputeLoop, Ticket
from tauscope_serving.packing import fair_pack
from tauscope_wire.errors import (
    DeadlineError,
    InternalError,
    RequestError,
    TauscopeError,
    UnavailableError,
)

WAIT_S = 60.0
"""Bound on waits that end by an event."""


@dataclass(frozen=True)
class Job:
    """What a pass computes: `2 * number`, unless `fault` says how it fails."""

    number: int
    fault: str = ""


@dataclass
class Device:
    """Runs passes, remembers them, and waits at a gate where a test wants to act in the middle."""

    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    passes: list[list[int]] = field(default_factory=list)

    def execute(self, jobs: Sequence[Job]) -> list[int | BaseException]:
        self.passes.append([job.number for job in jobs])
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if any(job.fault == "device" for job in jobs):
            raise RuntimeError("CUDA error")
        if any(job.fault == "exit" for job in jobs):
            raise SystemExit(1)
        if any(job.fault == "short" for job in jobs):
            return [1] * (len(jobs) + 1)
        return [RequestError("bad job") if job.fault == "own" else 2 * job.number for job in jobs]


class Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def first_only(waiting: Sequence[Ticket[Job, int]]) -> list[Ticket[Job, int]]:
    return [waiting[0]]


def everything(waiting: Sequence[Ticket[Job, int]]) -> list[Ticket[Job, int]]:
    return list(waiting)


@contextmanager
def running_loop(
    device: Device, pack: Callable[[Sequence[Ticket[Job, int]]], list[Ticket[Job, int]]] = everything, **options: Any
) -> Iterator[ComputeLoop[Job, int]]:
    loop = ComputeLoop(device.execute, pack=pack, **({"max_queued": 1000} | options))
    loop.start()
    try:
        yield loop
    finally:
        device.gate.set()
        loop.close(drain_s=WAIT_S)
        assert not loop.state().is_alive


def hold(device: Device, loop: ComputeLoop[Job, int]) -> Ticket[Job, int]:
    """Put the loop into a pass that waits at the gate, so that what follows is queued."""
    ticket = loop.submit(Job(-1), cost=1, caller="holder", deadline_s=1e6)
    assert device.entered.wait(WAIT_S)
    return ticket


plans = st.lists(
    st.tuples(
        st.integers(1, 300),
        st.sampled_from(["", "", "", "", "own", "device", "exit", "short"]),
        st.sampled_from("abc"),
        st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(plan=plans, max_jobs=st.integers(1, 6))
def test_any_mix_of_costs_failures_and_cancellations_gives_each_caller_its_own_result(
    plan: list[tuple[int, str, str, bool]], max_jobs: int
) -> None:
    device = Device()
    with running_loop(device, fair_pack(max_cost=600, max_jobs=max_jobs)) as loop:
        hold(device, loop)
        tickets = [
            loop.submit(Job(number, fault), cost=cost, caller=caller, deadline_s=1e6)
            for number, (cost, fault, caller, _) in enumerate(plan)
        ]
        for ticket, (_, _, _, cancelled) in zip(tickets, plan, strict=True):
            assert not cancelled or ticket.future.cancel()
        device.gate.set()
        outcomes: list[int | BaseException] = []
        for ticket in tickets:
            try:
                outcomes.append(ticket.future.result(WAIT_S))
            except (Exception, CancelledError) as error:
                outcomes.append(error)
        after = loop.submit(Job(7), cost=1, deadline_s=1e6)
        assert after.future.result(WAIT_S) == 14  # the loop lived through all of it

    ends_a_pass = {number for number, (_, fault, _, _) in enumerate(plan) if fault in ("device", "exit", "short")}
    poisoned = {number for jobs in device.passes[1:-1] if ends_a_pass & set(jobs) for number in jobs}
    executed = [number for jobs in device.passes[1:-1] for number in jobs]
    assert len(executed) == len(set(executed))
    for number, (_, fault, _, cancelled) in enumerate(plan):
        outcome = outcomes[number]
        if cancelled:
            assert isinstance(outcome, CancelledError)
            assert number not in executed
        elif number in poisoned:
            assert isinstance(outcome, InternalError)
        elif fault == "own":
            assert isinstance(outcome, RequestError)
        else:
            assert outcome == 2 * number


def test_a_failing_pass_fails_only_its_own_jobs_and_tells_them_nothing_of_the_defect() -> None:
    device = Device()
    with running_loop(device, first_only) as loop:
        hold(device, loop)
        bad, good = (loop.submit(Job(n, f), cost=1, deadline_s=1e6) for n, f in ((1, "device"), (2, "")))
        device.gate.set()
        assert good.future.result(WAIT_S) == 4
        with pytest.raises(InternalError) as caught:
            bad.future.result(WAIT_S)
    assert "CUDA" not in str(caught.value)


def test_jobs_that_share_a_failing_pass_get_an_exception_of_their_own() -> None:
    device = Device()
    with running_loop(device) as loop:
        hold(device, loop)
        both = [loop.submit(Job(n, "device"), cost=1, deadline_s=1e6) for n in (1, 2)]
        device.gate.set()
        first, second = (ticket.future.exception(WAIT_S) for ticket in both)
    assert isinstance(first, InternalError)
    assert first is not second
    assert str(first) == str(second)


def test_only_faults_of_the_service_count_as_failed_passes() -> None:
    device = Device()
    device.gate.set()
    with running_loop(device, first_only) as loop:
        for fault, failures in (("own", 0), ("device", 1), ("device", 2), ("own", 0), ("device", 1), ("", 0)):
            loop.submit(Job(1, fault), cost=1, deadline_s=1e6).future.exception(WAIT_S)
            assert loop.state().consecutive_failures == failures
        assert (loop.state().passes, loop.state().failed_passes) == (6, 3)


@pytest.mark.parametrize("choice", ["raises", "nothing", "foreign", "twice"])
def test_a_broken_packing_policy_does_not_stop_the_loop(choice: str) -> None:
    foreign: Ticket[Job, int] = Ticket(Job(99), 1, "", 1e9, 0.0)

    def broken(waiting: Sequence[Ticket[Job, int]]) -> list[Ticket[Job, int]]:
        if choice == "raises":
            raise ZeroDivisionError
        return {"nothing": [], "foreign": [foreign], "twice": [waiting[0], waiting[0]]}[choice]

    device = Device()
    device.gate.set()
    with running_loop(device, broken) as loop:
        tickets = [loop.submit(Job(n), cost=1, deadline_s=1e6) for n in range(5)]
        assert [t.future.result(WAIT_S) for t in tickets] == [0, 2, 4, 6, 8]
    assert not foreign.future.done()
    assert sorted(n for jobs in device.passes for n in jobs) == [0, 1, 2, 3, 4]


def test_a_full_queue_refuses_with_its_bound_and_frees_the_places_of_cancelled_jobs() -> None:
    device = Device()
    with running_loop(device, max_queued=2) as loop:
        hold(device, loop)
        tickets = [loop.submit(Job(n), cost=1, caller="a", deadline_s=1e6) for n in (1, 2)]
        with pytest.raises(UnavailableError) as caught:
            loop.submit(Job(3), cost=1, caller="a", deadline_s=1e6)
        assert (caught.value.code, caught.value.details["bound"]) == ("queue_full", 2)
        tickets[0].future.cancel()
        loop.submit(Job(4), cost=1, caller="a", deadline_s=1e6)


def test_who_floods_a_full_queue_gives_way_to_others_up_to_their_share() -> None:
    device = Device()
    with running_loop(device, max_queued=6) as loop:
        hold(device, loop)
        flood = [loop.submit(Job(n), cost=1, caller="flood", deadline_s=1e6) for n in range(6)]
        others = [loop.submit(Job(10 + n), cost=1, caller="other", deadline_s=1e6) for n in range(3)]
        with pytest.raises(UnavailableError):
            loop.submit(Job(20), cost=1, caller="other", deadline_s=1e6)
        device.gate.set()
        assert [t.future.result(WAIT_S) for t in others] == [20, 22, 24]
        assert [t.future.result(WAIT_S) for t in flood[:3]] == [0, 2, 4]
        for displaced in flood[3:]:
            with pytest.raises(UnavailableError) as caught:
                displaced.future.result(WAIT_S)
            assert caught.value.code == "queue_full"


def test_a_job_whose_deadline_passed_in_the_queue_never_reaches_the_device() -> None:
    device, clock = Device(), Clock()
    with running_loop(device, clock=clock) as loop:
        hold(device, loop)
        late = loop.submit(Job(1), cost=1, deadline_s=5)
        in_time = loop.submit(Job(2), cost=1, deadline_s=50)
        clock.now = 10
        device.gate.set()
        assert in_time.future.result(WAIT_S) == 4
        with pytest.raises(DeadlineError):
            late.future.result(WAIT_S)
    assert device.passes == [[-1], [2]]


def test_a_caller_gets_504_in_time_also_when_the_pass_does_not_end() -> None:
    device = Device()
    with running_loop(device) as loop:
        with pytest.raises(DeadlineError, match="not done within"):
            asyncio.run(loop.run(Job(1), cost=1, deadline_s=0.01))
        device.gate.set()
        assert asyncio.run(loop.run(Job(2), cost=1, deadline_s=WAIT_S)) == 4


def test_cancelling_the_caller_takes_its_job_out_of_the_queue() -> None:
    device = Device()

    async def give_up(loop: ComputeLoop[Job, int]) -> None:
        task = asyncio.ensure_future(loop.run(Job(1), cost=1, deadline_s=1e6))
        while not loop.state().queued:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with running_loop(device) as loop:
        hold(device, loop)
        asyncio.run(give_up(loop))
        device.gate.set()
        assert loop.submit(Job(2), cost=1, deadline_s=1e6).future.result(WAIT_S) == 4
    assert device.passes == [[-1], [2]]


def test_close_finishes_what_is_queued_and_refuses_what_comes() -> None:
    device = Device()
    with running_loop(device) as loop:
        hold(device, loop)
        queued = loop.submit(Job(1), cost=1, deadline_s=1e6)
        closing = threading.Thread(target=loop.close, kwargs={"drain_s": WAIT_S})
        closing.start()
        refused: TauscopeError | None = None
        while refused is None:
            try:
                loop.submit(Job(2), cost=1, deadline_s=1e6).future.cancel()
            except UnavailableError as error:
                refused = error
        assert refused.code == "draining"
        device.gate.set()
        assert queued.future.result(WAIT_S) == 2
        closing.join(WAIT_S)
        assert not loop.state().is_alive


def test_close_without_time_fails_what_is_queued_as_draining() -> None:
    device = Device()
    with running_loop(device) as loop:
        hold(device, loop)
        queued = loop.submit(Job(1), cost=1, deadline_s=1e6)
        loop.close()
        with pytest.raises(UnavailableError) as caught:
            queued.future.result(WAIT_S)
        assert caught.value.code == "draining"
    assert device.passes == [[-1]]


def test_a_pass_waits_for_company_until_enough_has_come() -> None:
    device, clock = Device(), Clock()
    device.gate.set()
    with running_loop(device, clock=clock, gather_s=WAIT_S, gather_cost=30) as loop:
        tickets = [loop.submit(Job(n), cost=10, deadline_s=1e6) for n in range(3)]
        assert [t.future.result(WAIT_S) for t in tickets] == [0, 2, 4]
    assert device.passes == [[0, 1, 2]]


def test_a_pass_waits_for_company_no_longer_than_its_time() -> None:
    device, clock = Device(), Clock()
    device.gate.set()
    with running_loop(device, clock=clock, gather_s=5.0, gather_cost=1000) as loop:
        first = loop.submit(Job(1), cost=10, deadline_s=1e6)
        clock.now = 5.0
        second = loop.submit(Job(2), cost=10, deadline_s=1e6)  # wakes the loop, which reads the clock
        assert (first.future.result(WAIT_S), second.future.result(WAIT_S)) == (2, 4)
    assert device.passes == [[1, 2]]


def test_the_state_shows_queue_and_running_pass() -> None:
    device, clock = Device(), Clock()
    with running_loop(device, clock=clock) as loop:
        hold(device, loop)
        loop.submit(Job(1), cost=7, deadline_s=1e6)
        clock.now = 3.0
        state = loop.state()
        assert (state.is_alive, state.queued, state.queued_cost, state.running, state.busy_s) == (True, 1, 7, 1, 3.0)
