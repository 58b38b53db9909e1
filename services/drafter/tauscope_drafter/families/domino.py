"""Domino: a DFlash backbone, and a causal correction by a GRU over the tokens drafted so far.

    z, U = backbone rows, lm_head(z)
    d_0..d_{P-1} = argmax U                       P = pure_draft_prefix_len
    s = GRU over embeddings of [anchor, d_0..d_{P-1}]
    i = P..K-1:  L_i = U_i + embed_proj([z_i; s]);  d_i = argmax L_i;  s = GRU(embed(d_i), s)

The correction covers the whole vocabulary; engines that restrict it to a pool of candidates approximate this.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.checkpoint.blocks import read_block_spec
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.families.dflash import Backbone, BlockContext, backbone_shapes
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights, drafts_of, previous_tokens, recorder_for
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError

NAME = "domino"

_INPUT, _STATE = "prefix_gru.weight_ih_l0", "prefix_gru.weight_hh_l0"
_NARROW, _WIDE = "embed_proj.0.weight", "embed_proj.2.weight"


def read(facts: Facts) -> DrafterSpec:
    """Describe the drafter. `extras`: `state` size of the GRU, `narrow` width of the correction, `pure` prefix."""
    state = facts.shape(_STATE, 2)[1]
    narrow = facts.shape(_NARROW, 2)[0]
    facts.agree("gru_hidden_dim", facts.own.integer("gru_hidden_dim"), state, _STATE)
    facts.agree("emb_dim", facts.own.integer("emb_dim"), narrow, _NARROW)
    pure = facts.own.integer("pure_draft_prefix_len")
    if pure is None:
        raise missing("pure_draft_prefix_len", "config", "PATH (a config.json that has it)", facts.origin)
    spec = read_block_spec(facts, NAME, extras={"state": state, "narrow": narrow, "pure": pure})
    if not 0 <= pure <= spec.drafts:
        raise CheckpointError(f"{facts.origin}: pure_draft_prefix_len={pure} is outside of 0..{spec.drafts}")
    return spec


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """Backbone, GRU and correction; none of the latter has biases."""
    hidden, state, narrow = spec.layers.hidden_size, spec.extras["state"], spec.extras["narrow"]
    return backbone_shapes(spec) | {
        _INPUT: (3 * state, hidden),
        _STATE: (3 * state, state),
        _NARROW: (narrow, hidden + state),
        _WIDE: (spec.draft_vocab_size, narrow),
    }


class Network(Backbone):
    """The backbone with its correction, run batched over anchors."""

    rows_depend_on_drafts = True

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        super().__init__(spec, weights, shared)
        self._head = shared.head.adapted(multiplier=spec.output_multiplier, softcap=spec.logit_softcap)

    def draft(
        self,
        context: BlockContext,
        anchors: Sequence[int],
        token_ids: Tensor,
        *,
        top_k: int,
        labels: bool = False,
        judge: JudgeLike | None = None,
    ) -> Drafts:
        """Drafts of a batch of anchors, free-running unless `labels`."""
        rows = self.block(context, anchors, token_ids)[:, self.spec.drafted_rows()]
        recorder = recorder_for(self._head, top_k, judge)
        tokens = token_ids[sent(anchors, token_ids.device)]
        state = rows.new_zeros(len(anchors), self.spec.extras["state"])
        for i in range(self.spec.drafts):
            if i:
                tokens = previous_tokens(tokens, token_ids, anchors, i, labels=labels)
            state = self._advance(tokens, state)  # has now seen the anchor and all tokens before place i
            z = rows[:, i].contiguous()
            if i < self.spec.extras["pure"]:
                tokens = recorder.step(z)
                continue
            narrow = F.silu(F.linear(torch.cat((z, state), -1), self._w[_NARROW]))
            tokens = recorder.step(z, partial(self._correction, narrow))
        return drafts_of(recorder)

    def _correction(self, narrow: Tensor, first: int, stop: int) -> Tensor:
        return F.linear(narrow, self._w[_WIDE][first:stop])

    def _advance(self, tokens: Tensor, state: Tensor) -> Tensor:
        """One step of the GRU (PyTorch's order of gates r, z, n; no biases)."""
        from_token = F.linear(self._embedding.rows(tokens), self._w[_INPUT]).chunk(3, -1)
        from_state = F.linear(state, self._w[_STATE]).chunk(3, -1)
        reset, update = (torch.sigmoid(t + s) for t, s in zip(from_token[:2], from_state[:2], strict=True))
        new = torch.tanh(from_token[2] + reset * from_state[2])
        return (1 - update) * new + update * state
