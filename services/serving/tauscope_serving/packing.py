"""Packing policy: which waiting tickets share the next pass."""

from collections import defaultdict
from collections.abc import Sequence

from tauscope_serving.compute import J, Pack, R, Ticket

MAX_PADDING_RATIO = 0.25
"""Largest share of a pass that may be padding: above it, lengths are too different to share a pass well."""


def fair_pack(*, max_cost: int, max_jobs: int) -> Pack[J, R]:
    """Pack by a budget of padded cost, length-bucketed, fair between callers.

    Callers take turns: the order is by (how many of the caller's tickets come before, arrival). The first ticket in
    that order always goes, alone if it exceeds the budget; others join while the padded cost, jobs times the longest,
    stays within `max_cost` and the padding within `MAX_PADDING_RATIO`.

    Args:
        max_cost: budget of a pass, in tokens, padding included.
        max_jobs: most jobs of a pass.
    """

    def pack(waiting: Sequence[Ticket[J, R]]) -> list[Ticket[J, R]]:
        turns: dict[str, int] = defaultdict(int)
        order = []
        for index, ticket in enumerate(waiting):
            order.append((turns[ticket.caller], index))
            turns[ticket.caller] += 1
        chosen: list[Ticket[J, R]] = []
        longest = total = 0
        for _, index in sorted(order):
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
        return chosen

    return pack
