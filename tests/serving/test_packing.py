"""The packing policy: within its budget, fair between callers, nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from tauscope_serving.compute import Ticket
from tauscope_serving.packing import MAX_PADDING_RATIO, fair_pack


def tickets(*jobs: tuple[str, int]) -> list[Ticket[int, int]]:
    return [Ticket(job=i, cost=cost, caller=name, deadline=1e9, arrived=i) for i, (name, cost) in enumerate(jobs)]


queues = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 400)), min_size=1, max_size=40)


@given(queue=queues, max_cost=st.integers(1, 1000), max_jobs=st.integers(1, 10))
def test_a_pass_keeps_its_budget_unless_one_job_alone_exceeds_it(
    queue: list[tuple[str, int]], max_cost: int, max_jobs: int
) -> None:
    waiting = tickets(*queue)
    chosen = fair_pack(max_cost=max_cost, max_jobs=max_jobs)(waiting)
    costs = [ticket.cost for ticket in chosen]
    padded = max(costs) * len(costs)
    assert 1 <= len(chosen) <= max_jobs
    assert len({id(t) for t in chosen}) == len(chosen)
    assert all(any(t is w for w in waiting) for t in chosen)
    assert padded <= max_cost or len(costs) == 1
    assert padded - sum(costs) <= MAX_PADDING_RATIO * padded


@given(queue=queues)
def test_the_oldest_job_always_goes_first_so_nobody_starves(queue: list[tuple[str, int]]) -> None:
    waiting = tickets(*queue)
    assert fair_pack(max_cost=1, max_jobs=4)(waiting) == [waiting[0]]


def test_a_caller_with_many_jobs_leaves_every_second_place_to_the_other() -> None:
    waiting = tickets(*[("greedy", 10)] * 50, *[("modest", 10)] * 2)
    chosen = fair_pack(max_cost=10_000, max_jobs=4)(waiting)
    assert [t.caller for t in chosen] == ["greedy", "modest", "greedy", "modest"]


def test_a_new_caller_is_in_the_very_next_pass_behind_any_backlog() -> None:
    waiting = tickets(*[("greedy", 100)] * 1000, ("new", 100))
    assert "new" in {t.caller for t in fair_pack(max_cost=200, max_jobs=2)(waiting)}


@given(backlog=st.integers(1, 60), others=st.integers(1, 5))
def test_all_callers_are_served_within_as_many_passes_as_there_are_callers(backlog: int, others: int) -> None:
    waiting = tickets(*[("greedy", 7)] * backlog, *[(f"c{i}", 300 - i) for i in range(others)])
    pack = fair_pack(max_cost=300, max_jobs=8)
    served: list[str] = []
    for _ in range(others + 1):
        chosen = pack(waiting)
        served += [t.caller for t in chosen]
        taken = {id(t) for t in chosen}
        waiting = [t for t in waiting if id(t) not in taken]
        if not waiting:
            break
    assert {f"c{i}" for i in range(others)} <= set(served)


def test_lengths_too_different_do_not_share_a_pass() -> None:
    waiting = tickets(("a", 100), ("b", 1), ("c", 90))
    assert [t.cost for t in fair_pack(max_cost=1000, max_jobs=8)(waiting)] == [100, 90]
