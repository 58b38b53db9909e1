"""Sizes of drafters from their descriptions, for placing them before anything is loaded."""

import math
from collections.abc import Sequence

from tauscope_drafter.checkpoint.reading import Description
from tauscope_drafter.placement import DrafterSizes

_LIVE_HIDDEN, _LIVE_MLP = 8, 3  # copies of a row alive at once in a layer, as the families estimate it


def drafter_sizes(descriptions: Sequence[Description], *, head_rows: int, head_width: int) -> DrafterSizes:
    """Sizes of drafters loaded together; block and activations are those of the largest.

    Args:
        descriptions: of checkpoints with weights.
        head_rows: of the target's head.
        head_width: of the target's head.
    """
    counts = [sum(math.prod(s) for s in d.expected.values()) for d in descriptions]
    largest = max((math.prod(s) for d in descriptions for s in d.expected.values()), default=0)
    specs = [d.spec for d in descriptions if d.spec.backbone is not None]

    def elements(block: int, hidden: int, inner: int) -> int:
        return block * (_LIVE_HIDDEN * hidden + _LIVE_MLP * inner)

    return DrafterSizes(
        parameters=tuple(counts) or (0,),
        largest_tensor=largest,
        head=head_rows * head_width,
        vocab=head_rows,
        block=max((s.block_size for s in specs), default=1),
        drafts=max((s.drafts for s in specs), default=1),
        anchor_elements=max(
            (elements(s.block_size, s.layers.hidden_size, s.layers.intermediate_size) for s in specs), default=1
        ),
        context_elements=max(
            (2 * s.layers.num_layers * s.layers.num_kv_heads * s.layers.head_dim for s in specs), default=1
        ),
    )
