"""Whether a drafter and a target belong together; a difference is told with both sides."""

from collections.abc import Sequence
from typing import NamedTuple

from tauscope_wire.errors import MismatchError


class DrafterSide(NamedTuple):
    """What a drafter expects of its target; `num_layers` is None when it does not say."""

    name: str
    taps: Sequence[int]
    hidden_size: int
    vocab_size: int
    num_layers: int | None = None


class TargetSide(NamedTuple):
    """What a target offers."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int


def check_fit(drafter: DrafterSide, target: TargetSide) -> None:
    """Compare taps, hidden size and vocabulary.

    Raises:
        MismatchError: they do not fit; `details` holds both sides.
    """
    wrong = []
    if drafter.taps and drafter.hidden_size != target.hidden_size:
        wrong.append(f"it reads states of size {drafter.hidden_size}, the target has {target.hidden_size}")
    if drafter.taps and max(drafter.taps) >= target.num_layers:
        wrong.append(
            f"it taps layer {max(drafter.taps)}, the target has {target.num_layers} layers (0..{target.num_layers - 1})"
        )
    if drafter.num_layers is not None and drafter.num_layers != target.num_layers:
        wrong.append(f"it was made for {drafter.num_layers} layers, the target has {target.num_layers}")
    if drafter.vocab_size != target.vocab_size:
        wrong.append(f"its vocabulary has {drafter.vocab_size} tokens, the target's {target.vocab_size}")
    if wrong:
        raise MismatchError(
            f"drafter {drafter.name} does not fit target {target.name}: {'; '.join(wrong)}; use a drafter made "
            "for this target",
            details={"drafter": {**drafter._asdict(), "taps": list(drafter.taps)}, "target": target._asdict()},
        )
