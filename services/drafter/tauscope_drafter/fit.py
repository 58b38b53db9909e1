"""Whether a drafter and a target belong together; a difference is told with both sides."""

from typing import Any

from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import MismatchError


def check_fit(spec: DrafterSpec, *, name: str, num_layers: int, hidden_size: int, vocab_size: int, target: str) -> None:
    """Compare taps, hidden size and vocabulary.

    Args:
        spec: the drafter.
        name: of the drafter, for messages.
        num_layers: of the target.
        hidden_size: of the target.
        vocab_size: of the target.
        target: name of the target, for messages.

    Raises:
        MismatchError: they do not fit; `details` holds both sides.
    """
    drafter_side: dict[str, Any] = {
        "taps": list(spec.taps),
        "hidden_size": spec.target_hidden_size,
        "vocab_size": spec.vocab_size,
        "num_layers": spec.target_num_layers,
    }
    target_side = {"num_layers": num_layers, "hidden_size": hidden_size, "vocab_size": vocab_size}
    wrong = []
    if spec.taps and spec.target_hidden_size != hidden_size:
        wrong.append(f"it reads states of size {spec.target_hidden_size}, the target has {hidden_size}")
    if spec.taps and max(spec.taps) >= num_layers:
        wrong.append(f"it taps layer {max(spec.taps)}, the target has {num_layers} layers (0..{num_layers - 1})")
    if spec.target_num_layers is not None and spec.target_num_layers != num_layers:
        wrong.append(f"it was made for {spec.target_num_layers} layers, the target has {num_layers}")
    if spec.vocab_size != vocab_size:
        wrong.append(f"its vocabulary has {spec.vocab_size} tokens, the target's {vocab_size}")
    if wrong:
        raise MismatchError(
            f"drafter {name} does not fit target {target}: {'; '.join(wrong)}; load a drafter made for this target",
            details={"drafter": drafter_side, "target": target_side},
        )
