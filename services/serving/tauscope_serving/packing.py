"""Packing policy: which waiting tickets share the next pass."""

from collections import defaultdict
from collections.abc import Sequence

from tauscope_serving.compute import J, Pack, R, Ticket

MAX_PADDING_RATIO = 0.25
"""Largest share of a pass that may be padding: above it, lengths are too different to share a pass well."""


def fair_pack(*, max_cost: int, max_jobs: int) -> Pack[J, R]:
    """Pack by a budget of padded cost, length-bucketed, fair between callers.

    Callers take turns: the order is by (how many of the caller's tickets come before, how recently the caller was
    served, arrival). The first ticket in that order always goes, alone if it exceeds the budget; others join while the
    padded cost, jobs times the longest, stays within `max_cost` and the padding within `MAX_PADDING_RATIO`. So every
    caller that waits is served within as many passes as callers wait, however long the backlog of another is.

    Args:
        max_cost: budget of a pass, in tokens, padding included.
        max_jobs: most jobs of a pass.
    """
    served: dict[str, int] = {}  # caller to the number of the last pass it was in; only callers that wait now
    passes = 0

    def pack(waiting: Sequence[Ticket[J, R]]) -> list[Ticket[J, R]]:
        nonlocal passes
        turns: dict[str, int] = defaultdict(int)
        order = []
        for index, ticket in enumerate(waiting):
            order.append((turns[ticket.caller], served.get(ticket.caller, -1), index))
            turns[ticket.caller] += 1
        chosen: list[Ticket[J, R]] = []
        longest = total = 0
        for _, _, index in sorted(order):
            ticket = waiting[index]
            top = max(longest, ticket.cost)
            padded = top * (len(chosen) + 1)
            fits = padded <= max_cost and padded - total - ticket.cost <= MAX_PADDING_RATIO * padded
            if chosen and not fits:
                continue
            chosen.append(ticket)
            longest, total = top, total + ticket.cost
            if len(chosen) >= max_jobs:
                break
        passes += 1
        served.update((ticket.caller, passes) for ticket in chosen)
        for gone in served.keys() - turns.keys():
            del served[gone]
        return chosen

    return pack
