"""P-EAGLE: EAGLE-3's first layer and plain layers after it, drafting all tokens in one pass.

Slot 0 of an anchor is the normal slot p-1. Slots d = 1..K-1 hold the mask token and `fc(mask_hidden)`, at position
p-1+d, causal over the context and earlier mask slots; row d predicts the token p+1+d.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.eagle import read_eagle_spec
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.families.eagle3 import SlotContext, Trunk, trunk_shapes
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights, drafts_of, recorder_for
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec

NAME = "peagle"

_MASK_HIDDEN = "mask_hidden"


def read(facts: Facts) -> DrafterSpec:
    """Describe the drafter; `extras` hold the switches, see `checkpoint.eagle`."""
    spec = read_eagle_spec(facts, NAME)
    if spec.mask_token_id is None:
        raise missing("mask_token_id (pard_token)", "mask_token_id", "151669", facts.origin)
    return spec


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """EAGLE-3's tensors and the state of mask slots."""
    return trunk_shapes(spec) | {_MASK_HIDDEN: (1, 1, len(spec.taps) * spec.target_hidden_size)}


class Network(Trunk):
    """One pass over all mask slots of all anchors."""

    rows_depend_on_drafts = False

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        super().__init__(spec, weights, shared)
        taps = weights[_MASK_HIDDEN].view(len(spec.taps), spec.target_hidden_size)
        mask = self._embedding.rows(torch.tensor(spec.mask_token_id))
        self._mask_x, self._mask_u = self._first(mask, self._fused(taps))

    def anchor_bytes(self, context_length: int) -> int:
        """All slots of an anchor run at once."""
        return super().anchor_bytes(context_length) * max(1, self.spec.drafts - 1)

    def draft(
        self,
        context: SlotContext,
        anchors: Sequence[int],
        token_ids: Tensor,
        *,
        top_k: int,
        labels: bool = False,
        judge: JudgeLike | None = None,
    ) -> Drafts:
        """Drafts of a batch of anchors; `labels` changes nothing, mask slots read no tokens."""
        outputs = context.outputs[sent(anchors, self._device) - 1].unsqueeze(1)
        slots = self.spec.drafts - 1
        if slots:
            x, u = (t.expand(len(anchors), slots, t.shape[-1]) for t in (self._mask_x, self._mask_u))
            own: list[Any] = [None] * self._c.num_layers
            outputs = torch.cat((outputs, self._own_slots(x, u, context, anchors, step=1, own=own)), 1)
        rows = self._norm(outputs, "norm") if self.spec.extras["head_norm"] else outputs
        recorder = recorder_for(self._head, top_k, judge)
        recorder.rows(rows)
        return drafts_of(recorder)
