"""DSpark (DeepSpec): a DFlash backbone, and a small Markov head that corrects each row by the token before it.

    h, U  = backbone, lm_head(h)                                        all rows in one pass
    prev_0 = anchor;  left to right:  L_j = U_j + bias(prev_j, h_j);  d_j = argmax L_j;  prev_{j+1} = d_j

    vanilla  bias = W2 e                      with e = W1[prev]
    gated    bias = W2 (g * e)                g = sigmoid(gate_proj [h; e])
    rnn      bias = W2 tanh(O)                [G, C, O] = joint_proj [s; e; h]
                                              s' = sigmoid(G) s + (1 - sigmoid(G)) tanh(C),  s_0 = 0

The confidence head shortens blocks in serving; drafts themselves do not depend on it, so it is loaded and not run.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.checkpoint.blocks import read_block_spec
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.families.dflash import Backbone, BlockContext, backbone_shapes
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights, drafts_of, previous_tokens, recorder_for
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError, ErrorCode

NAME = "dspark"

_W1, _W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
_GATE, _JOINT, _CONFIDENCE = "markov_head.gate_proj", "markov_head.joint_proj", "confidence_head.proj"
_MODELOPT = {"markov_w1.": "markov_head.", "markov_w2.": "markov_head.", "gate_proj.": "markov_head."}
_MODELOPT |= {"joint_proj.": "markov_head.", "confidence_proj.": "confidence_head."}


def canonical_name(name: str) -> str:
    """Names of ModelOpt, which keeps the head's tensors at the top, to those of DeepSpec."""
    for start, prefix in _MODELOPT.items():
        if name.startswith(start):
            return prefix + name.replace("confidence_proj.", "proj.", 1)
    return name


def read(facts: Facts) -> DrafterSpec:
    """Describe the drafter. `extras`: `rank`, `kind` of the head, `confidence` rows' width (0: no such head)."""
    shapes = facts.shapes
    rank = facts.shape(_W1, 2)[1] if _W1 in shapes else 0
    declared = facts.own.integer("markov_rank")
    if declared is not None and declared != rank:
        raise CheckpointError(
            f"{facts.origin}: markov_rank={declared}, tensors of rank {rank} were found", ErrorCode.TENSOR_SHAPE
        )
    kind = "none" if not rank else "vanilla"
    if f"{_GATE}.weight" in shapes:
        kind = "gated"
    if f"{_JOINT}.weight" in shapes:
        kind = "rnn"
    said = facts.own.find("markov_head_type")
    if said is not None and rank and said != kind:
        raise CheckpointError(
            f"{facts.origin}: markov_head_type={said!r}, the tensors are those of a {kind} head",
            ErrorCode.TENSOR_MISSING,
        )
    confidence = facts.shape(f"{_CONFIDENCE}.weight", 2)[1] if f"{_CONFIDENCE}.weight" in shapes else 0
    has_bias = f"{_CONFIDENCE}.bias" in shapes
    extras: dict[str, Any] = {"rank": rank, "kind": kind, "confidence": confidence, "confidence_bias": has_bias}
    return read_block_spec(facts, NAME, extras=extras)


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """Backbone, Markov head, and the confidence head where there is one."""
    rank, kind, hidden = spec.extras["rank"], spec.extras["kind"], spec.layers.hidden_size
    shapes = backbone_shapes(spec)
    if rank:
        shapes |= {_W1: (spec.vocab_size, rank), _W2: (spec.draft_vocab_size, rank)}
    if kind == "gated":
        shapes |= {f"{_GATE}.weight": (rank, hidden + rank), f"{_GATE}.bias": (rank,)}
    if kind == "rnn":
        shapes |= {f"{_JOINT}.weight": (3 * rank, 2 * rank + hidden), f"{_JOINT}.bias": (3 * rank,)}
    if spec.extras["confidence"]:
        wide = hidden + rank if spec.extras["confidence"] != hidden else hidden
        shapes |= {f"{_CONFIDENCE}.weight": (1, wide)}
        if spec.extras["confidence_bias"]:
            shapes |= {f"{_CONFIDENCE}.bias": (1,)}
    return shapes


class Network(Backbone):
    """The backbone with its Markov head, run batched over anchors."""

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        super().__init__(spec, weights, shared)
        self._head = shared.head.adapted(multiplier=spec.output_multiplier, softcap=spec.logit_softcap)
        self.rows_depend_on_drafts = spec.extras["kind"] != "none"

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
        previous = token_ids[sent(anchors, token_ids.device)]
        state = rows.new_zeros(len(anchors), self.spec.extras["rank"])
        for j in range(self.spec.drafts):
            if j:
                previous = previous_tokens(previous, token_ids, anchors, j, labels=labels)
            h = rows[:, j].contiguous()
            mixed, state = self._mix(previous, h, state)
            previous = recorder.step(h, None if mixed is None else partial(self._bias, mixed))
        return drafts_of(recorder)

    def _mix(self, previous: Tensor, h: Tensor, state: Tensor) -> tuple[Tensor | None, Tensor]:
        """What W2 is applied to, [a, r], and the next state of the rnn head."""
        w, kind = self._w, self.spec.extras["kind"]
        if kind == "none":
            return None, state
        e = F.embedding(previous, w[_W1])
        if kind == "gated":
            gate = torch.sigmoid(F.linear(torch.cat((h, e), -1), w[f"{_GATE}.weight"], w[f"{_GATE}.bias"]))
            return gate * e, state
        if kind == "rnn":
            joint = F.linear(torch.cat((state, e, h), -1), w[f"{_JOINT}.weight"], w[f"{_JOINT}.bias"])
            g, c, o = joint.chunk(3, -1)
            g = torch.sigmoid(g)
            return torch.tanh(o), g * state + (1 - g) * torch.tanh(c)
        return e, state

    def _bias(self, mixed: Tensor, first: int, stop: int) -> Tensor:
        return F.linear(mixed, self._w[_W2][first:stop]) * self.spec.output_multiplier
