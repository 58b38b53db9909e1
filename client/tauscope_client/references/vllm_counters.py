"""What a vLLM server that speculates has counted: read from its `/metrics`, differences taken around one request.

vLLM gives no counters with the answer. Its Prometheus counters are sums over everything the server has done, so a
difference belongs to one request only while nothing else runs there; a difference that cannot be this request's is
dropped. They are counted before the text is cut at a stop id (`vllm/v1/spec_decode/metrics.py`).
"""

import re
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from tauscope_client.references.record import Served

__all__ = ["SpecCounters", "read_counters", "served_between"]

_SAMPLE = re.compile(r"^vllm:spec_decode_(num_\w+?)_total(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>[0-9.eE+]+)\s*$", re.M)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True)
class SpecCounters:
    """Sums since the server started, over all its engines.

    Attributes:
        num_drafts: verification steps.
        num_draft_tokens: tokens drafted.
        num_accepted: draft tokens accepted.
        accepted_at: steps that accepted at least i + 1 draft tokens, by i.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted: int
    accepted_at: tuple[int, ...]

    def since(self, earlier: "SpecCounters") -> "SpecCounters":
        """What was added after `earlier`."""
        return SpecCounters(
            self.num_drafts - earlier.num_drafts,
            self.num_draft_tokens - earlier.num_draft_tokens,
            self.num_accepted - earlier.num_accepted,
            tuple(now - then for now, then in zip_longest(self.accepted_at, earlier.accepted_at, fillvalue=0)),
        )


def read_counters(text: str) -> SpecCounters | None:
    """Find the counters in Prometheus' text form; None when the server has none, that is, does not speculate."""
    sums: dict[str, int] = {}
    positions: dict[int, int] = {}
    for sample in _SAMPLE.finditer(text):
        value = int(float(sample["value"]))
        position = _POSITION.search(sample["labels"] or "")
        if position is not None:
            positions[int(position[1])] = positions.get(int(position[1]), 0) + value
        else:
            sums[sample[1]] = sums.get(sample[1], 0) + value
    if "num_drafts" not in sums:
        return None
    return SpecCounters(
        sums["num_drafts"],
        sums.get("num_draft_tokens", 0),
        sums.get("num_accepted_tokens", 0),
        tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1)),
    )


def served_between(before: SpecCounters, after: SpecCounters, *, completion_tokens: int) -> Served | None:
    """The counters of one request, None when the difference cannot be that of this request alone.

    A request of n tokens gets its first from prefill and the others from steps; the last step may count accepted tokens
    that were cut from the text, fewer than one block of them.

    Args:
        before: counters read before the request was sent.
        after: counters read after it was answered.
        completion_tokens: tokens of the answer, stop id included.
    """
    added = after.since(before)
    if added.num_drafts < 1:
        return None
    emitted = added.num_drafts + added.num_accepted
    width = len(added.accepted_at)
    if not completion_tokens - 1 <= emitted <= completion_tokens + width:
        return None
    at_least = (added.num_drafts, *added.accepted_at, 0)
    return Served(
        completion_tokens=completion_tokens,
        verify_steps=added.num_drafts,
        accept_length=emitted / added.num_drafts,
        histogram=[more - fewer for more, fewer in pairwise(at_least)],
    )
