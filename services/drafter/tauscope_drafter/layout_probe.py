"""Measures the layout of a drafter whose files do not say it: 1+N or anchor-first.

On teacher-forced anchors of text by the target itself, row 1 of a 1+N drafter predicts the token after the anchor, and
row 0 of an anchor-first one. The right reading hits far more often; the other is close to chance. What was measured is
kept with the drafter and logged, and a result that is not clear is an error, not a guess.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.blocks import UNDECIDED_LAYOUT
from tauscope_drafter.checkpoint.layout import BlockLayout
from tauscope_drafter.conditions import drafts_of
from tauscope_drafter.families.family import Network
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError, ErrorCode

MIN_ANCHORS = 50  # hit rates of 0.6 and 0.1 are five standard deviations apart on so many
MIN_RATE = 0.15  # below this even the better reading is no drafter of this target
MIN_RATIO = 2.0  # the better reading must be this much better


@dataclass(frozen=True, slots=True)
class ProbeInput:
    """One text of the target.

    Attributes:
        states: [P, T, Ht] on the compute device in the compute dtype, planes as the drafter's taps.
        token_ids: int64 [T] on the compute device.
        start: first position of the response.
    """

    states: Tensor
    token_ids: Tensor
    start: int


class Rates(NamedTuple):
    """Share of anchors whose next token each reading hits."""

    fill_in: float
    anchor_first: float
    num_anchors: int


def with_layout(spec: DrafterSpec, layout: BlockLayout) -> DrafterSpec:
    """The description read in one of the two ways."""
    extras = {name: value for name, value in spec.extras.items() if name != UNDECIDED_LAYOUT}
    return replace(spec, layout=layout, drafts=drafts_of(layout, spec.block_size), extras=extras)


@torch.inference_mode()
def hit_rates(spec: DrafterSpec, build: Callable[[DrafterSpec], Network], texts: Sequence[ProbeInput]) -> Rates:
    """Run both readings on all response positions of the texts."""
    layouts: tuple[BlockLayout, ...] = ("fill-in", "anchor-first")
    networks = [build(with_layout(spec, layout)) for layout in layouts]
    hits, count = [0, 0], 0
    for text in texts:
        anchors = list(range(text.start, len(text.token_ids) - 1))
        context = networks[0].fuse(text.states, text.token_ids)
        labels = text.token_ids[text.start + 1 :]
        count += len(anchors)
        for i, network in enumerate(networks):
            drafts = network.draft(context, anchors, text.token_ids, top_k=1)
            hits[i] += int((drafts.token_ids[:, 0] == labels).sum())
    return Rates(hits[0] / max(count, 1), hits[1] / max(count, 1), count)


def decide(rates: Rates, origin: str) -> tuple[BlockLayout, str]:
    """The layout and the evidence for it.

    Raises:
        CheckpointError: too few anchors, or no reading clearly better.
    """
    evidence = (
        f"next token hit by row 1 (fill-in) at {rates.fill_in:.1%} and by row 0 (anchor-first) at "
        f"{rates.anchor_first:.1%} of {rates.num_anchors} anchors"
    )
    better, worse = max(rates[:2]), min(rates[:2])
    if rates.num_anchors < MIN_ANCHORS or better < MIN_RATE or better < MIN_RATIO * worse:
        raise CheckpointError(
            f"{origin}: the layout is not recorded, and measuring it gave no clear answer ({evidence}); give "
            "layout=fill-in or layout=anchor-first",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
            details={"fill_in": rates.fill_in, "anchor_first": rates.anchor_first, "anchors": rates.num_anchors},
        )
    return ("fill-in" if rates.fill_in > rates.anchor_first else "anchor-first"), evidence
