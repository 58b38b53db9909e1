"""Evaluation: drafts for every response anchor, the serving walk over greedy references, tau with bootstrap intervals.

Definitions are the project's: a round accepts the longest prefix of drafts that equals the reference and emits one
token more, cut at the end of the text; tau is emitted per round over the walk, pooled over all rounds. Written apart
from the client's metrics on purpose: the recipe runs where the client is not installed, and the two can be compared.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from deploy.demo.train.answers import Prefill
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.networks.dspark import DSpark
from deploy.demo.train.networks.eagle3 import Eagle3
from deploy.demo.train.settings import SEED

ANCHOR_CHUNK = 16
"""Anchors of one sequence per pass; the block-diagonal part of the mask wastes work in proportion."""
SEQUENCE_CHUNK = 64
BOOTSTRAP_SAMPLES = 2000
CONFIDENCE = 0.95


class Round(NamedTuple):
    """One round of the walk: accepted drafts, and tokens added to the text."""

    accepted: int
    emitted: int


Match = Callable[[Prefill, slice, torch.Tensor], torch.Tensor]
"""Takes a prefill, rows of it and anchors [n, A]; returns how many drafts of each anchor match before the first miss
[n, A].
"""


def leading_matches(drafts: torch.Tensor, labels: torch.Tensor, exists: torch.Tensor) -> torch.Tensor:
    """Length of the matching prefix along the last axis."""
    return ((drafts == labels) & exists).long().cumprod(-1).sum(-1)


def labels_of(data: Prefill, rows: slice, anchors: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference tokens after each anchor and whether they exist: [n, A, count]."""
    ids = data.ids[rows]
    at = anchors[..., None] + torch.arange(1, count + 1, device=ids.device)
    labels = ids.gather(1, at.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(at)
    return labels, at < data.total_tokens[rows][:, None, None]


def dflash_matches(
    network: DFlash,
    embedding: torch.Tensor,
    taps: Sequence[int] | None = None,
    *,
    head: torch.Tensor | None = None,
) -> Match:
    """Matches of a DFlash drafter; ``taps`` may differ from the network's own to try other layers. Without ``head``,
    the embedding is it.
    """
    rows_of_head = embedding if head is None else head

    def match(data: Prefill, rows: slice, anchors: torch.Tensor) -> torch.Tensor:
        features = data.taps(network.shape.taps if taps is None else taps, rows).to(embedding.dtype)
        states = network(embedding, features, data.ids[rows], anchors)
        labels, exists = labels_of(data, rows, anchors, network.shape.block - 1)
        return leading_matches(F.linear(states[:, :, 1:], rows_of_head).argmax(-1), labels, exists)

    return match


def dspark_matches(network: DSpark, embedding: torch.Tensor) -> Match:
    """Matches of a DSpark drafter, teacher-forced, which equals free running up to the first miss."""

    def match(data: Prefill, rows: slice, anchors: torch.Tensor) -> torch.Tensor:
        features = data.taps(network.shape.taps, rows).to(embedding.dtype)
        states = network(embedding, features, data.ids[rows], anchors)
        labels, exists = labels_of(data, rows, anchors, network.shape.block)
        previous = torch.cat((data.ids[rows].gather(1, anchors)[..., None], labels[..., :-1]), -1)
        logits, _ = network.heads(states, previous, embedding)
        return leading_matches(logits.argmax(-1), labels, exists)

    return match


def eagle3_matches(network: Eagle3, embedding: torch.Tensor, draft_ids: torch.Tensor) -> Match:
    """Matches of an EAGLE-3 drafter over ``draft_ids`` [draft vocab] (target id of each draft id)."""

    def match(data: Prefill, rows: slice, anchors: torch.Tensor) -> torch.Tensor:
        features = data.taps(network.shape.taps, rows).to(embedding.dtype)
        choices = [
            draft_ids[network.lm_head(states).argmax(-1)]
            for states in network(embedding, features, data.ids[rows], network.shape.block)
        ]
        slots = anchors[..., None] - 1 + torch.arange(len(choices), device=anchors.device)
        stacked = torch.stack(choices, -1)  # [n, T, K]
        last = stacked.shape[1] - 1
        drafts = torch.stack(
            [stacked[:, :, k].gather(1, slots[..., k].clamp(max=last)) for k in range(len(choices))], -1
        )
        labels, exists = labels_of(data, rows, anchors, len(choices))
        return leading_matches(drafts, labels, exists)

    return match


def walk(matches: Sequence[int], response_tokens: int) -> list[Round]:
    """Rounds of one response.

    Args:
        matches: Accepted drafts for the anchor at each response position (index 0 is the first response token).
        response_tokens: Length of the response; the first token comes from prefill and is not counted.
    """
    rounds, at = [], 0
    while at + 1 < response_tokens:
        accepted = matches[at]
        emitted = min(accepted + 1, response_tokens - 1 - at)
        rounds.append(Round(accepted, emitted))
        at += emitted
    return rounds


@torch.no_grad()
def walk_all(match: Match, data: Prefill, *, sequences: int = SEQUENCE_CHUNK) -> list[list[Round]]:
    """The serving walk of a drafter over every answer of a prefill, ``sequences`` of them at a time."""
    starts, ends = data.prompt_tokens, data.total_tokens
    out: list[list[Round]] = []
    for first in range(0, len(data.ids), sequences):
        rows = slice(first, min(first + sequences, len(data.ids)))
        longest = int((ends[rows] - starts[rows]).max())
        found = []
        for offset in range(0, longest, ANCHOR_CHUNK):
            at = starts[rows][:, None] + torch.arange(offset, offset + ANCHOR_CHUNK, device=starts.device)
            found.append(match(data, rows, at.clamp(max=data.ids.shape[1] - 1)))
        table = torch.cat(found, 1).tolist()
        sizes = (ends[rows] - starts[rows]).tolist()
        out += [walk(row, size) for row, size in zip(table, sizes, strict=True)]
    return out


def tau(rounds: Sequence[Sequence[Round]]) -> float | None:
    """Emitted per round, pooled over all rounds; None without rounds."""
    count = sum(len(r) for r in rounds)
    return sum(x.emitted for r in rounds for x in r) / count if count else None


def interval(rounds: Sequence[Sequence[Round]], *, samples: int = BOOTSTRAP_SAMPLES) -> tuple[float, float] | None:
    """Percentile interval of tau from resampling prompts with replacement: rounds of one prompt are not independent."""
    emitted = np.array([sum(x.emitted for x in r) for r in rounds], dtype=float)
    count = np.array([len(r) for r in rounds], dtype=float)
    if not count.sum():
        return None
    chosen = np.random.default_rng(SEED).integers(0, len(rounds), (samples, len(rounds)))
    totals = count[chosen].sum(1)
    values = emitted[chosen].sum(1)[totals > 0] / totals[totals > 0]
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def summarise(rounds: Sequence[Sequence[Round]], block: int) -> dict[str, Any]:
    """Tau with its interval, the mean of per-prompt means, counts, and the unconditional rate of each draft
    position.
    """
    flat = [x for r in rounds for x in r]
    means = [float(np.mean([x.emitted for x in r])) for r in rounds if r]
    pooled, bounds = tau(rounds), interval(rounds)
    return {
        "tau_pooled": None if pooled is None else round(pooled, 4),
        "interval_95": None if bounds is None else [round(x, 4) for x in bounds],
        "tau_mean_of_means": round(float(np.mean(means)), 4) if means else None,
        "tau_prompt_deciles": [round(float(q), 3) for q in np.quantile(means, np.arange(0.1, 1.0, 0.1))]
        if means
        else [],
        "prompts": len(rounds),
        "rounds": len(flat),
        "emitted": sum(x.emitted for x in flat),
        "empty": sum(not r for r in rounds),
        "rate": [round(sum(x.accepted >= i for x in flat) / max(1, len(flat)), 4) for i in range(1, block)],
    }
