"""Sharing load and drafters out to replicas: the choice itself, without Ray."""

from typing import Any

import pytest
from routing import BELIEF_S, LOADING_TOKENS, SMALLEST_TOKENS, TENTATIVE_S, UNKNOWN_BYTES, Asked, Dispatcher, asked_by

IDLE: dict[str, Any] = {"tokens": 0}


@pytest.fixture
def now_s() -> list[float]:
    return [100.0]


@pytest.fixture
def dispatcher(now_s: list[float]) -> Dispatcher[str]:
    return Dispatcher(clock=lambda: now_s[0])


def send(dispatcher: Dispatcher[str], reports: dict[str, Any], name: str, asked: Asked) -> str:
    replica = dispatcher.rank(reports, asked)[0]
    dispatcher.place(name, replica, asked, is_sent=True)
    return replica


@pytest.mark.parametrize(
    ("headers", "tokens", "drafter"),
    [
        ([(b"content-length", b"4000")], 1000, None),
        ([(b"Content-Length", b"8"), (b"X-Tauscope-Drafter", b"step20k")], SMALLEST_TOKENS, "step20k"),
        ([(b"transfer-encoding", b"chunked")], UNKNOWN_BYTES // 4, None),
        ([], SMALLEST_TOKENS, None),
        ([(b"content-length", b"-1"), (b"x-tauscope-drafter", b"")], SMALLEST_TOKENS, None),
    ],
)
def test_a_request_is_weighed_by_its_headers_alone(
    headers: list[tuple[bytes, bytes]], tokens: int, drafter: str | None
) -> None:
    assert asked_by(headers) == Asked(tokens, drafter)


def test_a_request_goes_where_the_fewest_tokens_are_in_work_not_the_fewest_requests(
    dispatcher: Dispatcher[str],
) -> None:
    reports = {"a": IDLE, "b": IDLE}
    long = send(dispatcher, reports, "long", Asked(10_000))
    short = [send(dispatcher, reports, f"short{n}", Asked(100)) for n in range(20)]
    assert set(short) == {"a", "b"} - {long}
    dispatcher.end("long")
    assert send(dispatcher, reports, "next", Asked(100)) == long


def test_equals_take_turns(dispatcher: Dispatcher[str]) -> None:
    reports = {"a": IDLE, "b": IDLE, "c": IDLE}
    assert {dispatcher.rank(reports, Asked(1))[0] for _ in range(3)} == {"a", "b", "c"}


def test_what_other_routers_sent_counts_by_the_reports(dispatcher: Dispatcher[str]) -> None:
    assert dispatcher.rank({"a": {"tokens": 5000}, "b": {"tokens": 10}}, Asked(1)) == ["b", "a"]


def test_a_drafter_stays_where_it_is_loaded_until_that_replica_is_much_busier(dispatcher: Dispatcher[str]) -> None:
    reports = {"a": {"tokens": 0, "drafters": ["x"]}, "b": {"tokens": 0, "drafters": ["y"]}}
    for number in range(4):
        assert send(dispatcher, reports, f"x{number}", Asked(1000, "x")) == "a"
    assert send(dispatcher, reports, "y", Asked(1000, "y")) == "b"
    busy = {**reports, "a": {"tokens": LOADING_TOKENS + 5000, "drafters": ["x"]}}
    assert dispatcher.rank(busy, Asked(1000, "x"))[0] == "b"
    assert dispatcher.rank(reports, Asked(1000, "new"))[0] == "b"  # nobody has it: the load decides


def test_a_drafter_that_was_just_asked_for_is_known_before_its_replica_reports_it(
    dispatcher: Dispatcher[str], now_s: list[float]
) -> None:
    reports = {"a": {"tokens": 0, "drafters": []}, "b": {"tokens": 0, "drafters": []}}
    first = send(dispatcher, reports, "1", Asked(1000, "x"))
    assert [send(dispatcher, reports, str(n), Asked(1000, "x")) for n in range(2, 6)] == [first] * 4
    for n in range(1, 6):
        dispatcher.end(str(n))
    now_s[0] += BELIEF_S + 1  # reports are newer now, and "x" is not in them: it was given up again
    assert {dispatcher.rank(reports, Asked(1000, "x"))[0] for _ in range(2)} == {"a", "b"}


def test_two_drafters_in_turn_settle_on_two_replicas_with_one_place_each(dispatcher: Dispatcher[str]) -> None:
    """Reports that are late must not make them change places."""
    stale = {name: {"tokens": 0, "drafters": ["x"], "places": 1} for name in ("a", "b")}
    went: dict[str, set[str]] = {"x": set(), "y": set()}
    for number in range(20):
        drafter = ("x", "y")[number % 2]
        went[drafter].add(send(dispatcher, stale, str(number), Asked(100, drafter)))
        dispatcher.end(str(number))
    assert [len(replicas) for replicas in went.values()] == [1, 1]
    assert went["x"] != went["y"]


def test_a_lost_replica_and_a_request_that_was_never_sent_weigh_nothing(
    dispatcher: Dispatcher[str], now_s: list[float]
) -> None:
    reports = {"a": IDLE, "b": IDLE}
    dispatcher.place("given up", "a", Asked(10**6), is_sent=False)
    assert dispatcher.rank(reports, Asked(1))[0] == "b"
    now_s[0] += TENTATIVE_S + 1
    assert {dispatcher.rank(reports, Asked(1))[0] for _ in range(2)} == {"a", "b"}
    dispatcher.place("lost", "b", Asked(10**6), is_sent=True)
    dispatcher.forget("b")
    assert {dispatcher.rank(reports, Asked(1))[0] for _ in range(2)} == {"a", "b"}


def test_two_replicas_end_with_loads_that_differ_by_one_request_at_most(dispatcher: Dispatcher[str]) -> None:
    """The claim of token-aware routing against dealing out by turns, on sizes that turns deal out badly."""
    sizes = [9000, 100] * 30
    reports = {"a": IDLE, "b": IDLE}
    aware = {"a": 0, "b": 0}
    for number, size in enumerate(sizes):
        aware[send(dispatcher, reports, str(number), Asked(size))] += size
    turns = [sum(sizes[start::2]) for start in (0, 1)]
    assert abs(aware["a"] - aware["b"]) <= max(sizes)
    assert abs(turns[0] - turns[1]) > 20 * max(sizes)
