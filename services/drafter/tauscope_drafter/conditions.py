"""What a request's `conditions` mean for a drafter's card: checks, and the card in force. Knows no torch.

What they do to states and networks is in `probing`.
"""

from typing import Any

from tauscope_wire.errors import ErrorCode, RequestError
from tauscope_wire.messages import DraftConditions, DrafterCard

_BLOCK_ONLY = ("context_shift", "layout", "block_size", "sliding_window", "causal")


def conditions_of(asked: DraftConditions | None) -> DraftConditions | None:
    """The conditions, None when nothing deviates."""
    return asked if asked is not None and asked.in_force() else None


def card_under(card: DrafterCard, conditions: DraftConditions | None) -> DrafterCard:
    """The card with taps, layout and number of drafts as they are under the conditions.

    Raises:
        RequestError: a condition that this drafter cannot be put under; names the field, the value and the bound.
    """
    if conditions is None:
        return card
    in_force = conditions.in_force()
    if card.layout == "sequential":
        for name in _BLOCK_ONLY:
            if name in in_force:
                raise _unsupported(name, in_force[name], f"drafter {card.name} ({card.family}) drafts without a block")
    for name in ("rope_theta", "plain_rope"):
        if name in in_force and not card.rope:
            raise _unsupported(name, in_force[name], f"drafter {card.name} ({card.family}) has no rotary embedding")
    _check_places(card, conditions)
    taps = card.taps
    if conditions.taps is not None:
        if len(conditions.taps) != len(card.taps) or len(set(conditions.taps)) != len(conditions.taps):
            raise RequestError(
                f"conditions.taps={conditions.taps}: drafter {card.name} reads {len(card.taps)} different planes"
            )
        taps = conditions.taps
    layout, size, drafts = conditions.layout or card.layout, conditions.block_size or card.block_size, card.drafts
    if (layout, size) != (card.layout, card.block_size):
        drafts = drafts_of(layout, size)
    return card.model_copy(update={"taps": list(taps), "layout": layout, "block_size": size, "drafts": drafts})


def drafts_of(layout: str, block_size: int) -> int:
    """Drafts of a block: the anchor's own row drafts only in the anchor-first layout."""
    return block_size if layout == "anchor-first" else block_size - 1


def context_rows(last_anchor: int, conditions: DraftConditions | None) -> int:
    """Positions 0..n-1 that the context of the last anchor covers."""
    # one row is always fetched: a context that ends before position 0 is empty, and states need a shape
    return last_anchor if conditions is None else max(1, last_anchor + conditions.context_shift)


def _check_places(card: DrafterCard, conditions: DraftConditions) -> None:
    count = len(card.taps)
    swapped = [place for pair in conditions.swap_taps for place in pair]
    places = {"zero_taps": conditions.zero_taps, "mean_taps": conditions.mean_taps, "swap_taps": swapped}
    for name, given in places.items():
        for place in given:
            if place >= count:
                bound = f"its {count} taps have places 0..{count - 1}" if count else "it reads no states"
                raise RequestError(f"conditions.{name}: place {place}: drafter {card.name}: {bound}")


def _unsupported(name: str, value: Any, why: str) -> RequestError:
    return RequestError(f"conditions.{name}={value!r}: {why}; leave it out", ErrorCode.NOT_SUPPORTED)
