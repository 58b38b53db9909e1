"""DFlash2: DFlash with dynamic short convolutions around its sublayers and a selector over candidates.

(a) around attention and MLP, block rows only, coefficients for both sides from the same normed input u:

    delta = kernel_projection(u) as [2, K, H/group];  kern[side] = base_kernel[side] + delta[side] (shared in a group)
    out[i, c] = sum_t kern[i, t, c] x[i - t, c]        terms before the block are zero
    u -> conv(side 0) -> sublayer -> conv(side 1) -> residual

(b) the `selector_top_k` best logits U of each row are candidates b, scored left to right with prev = anchor at first:

    score_t(b) = U_t(b) + < A[prev] * Proj(h_t), S[b] >;  d_t = argmax, ties to the better candidate

What is reported is the distribution over the candidates, which is also the one that rejection sampling would use.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.checkpoint.blocks import num_layers, read_block_spec
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.families.dflash import Backbone, BlockContext, backbone_shapes
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights, drafts_of, previous_tokens, recorder_for
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError, ErrorCode

NAME = "dflash2"

_PREDECESSOR = "candidate_selector.predecessor_codebook"
_SUCCESSOR = "candidate_selector.successor_codebook"
_PROJECTION = "candidate_selector.hidden_projection.weight"


def canonical_name(name: str) -> str:
    """Codebooks are published without `.weight`; some exporters add it."""
    return name.removesuffix(".weight") if name.endswith("_codebook.weight") else name


def read(facts: Facts) -> DrafterSpec:
    """Describe the drafter. `extras`: `kernel`, `group` of the convolutions, `rank`, `max_top_k` of the selector."""
    first = "layers.0.attention_conv"
    _, kernel, hidden = facts.shape(f"{first}.base_kernel", 3)
    rows, _ = facts.shape(f"{first}.kernel_projection.weight", 2)
    if rows % (2 * kernel) or hidden % (rows // (2 * kernel)):
        raise CheckpointError(
            f"{facts.origin}: tensor {first}.kernel_projection.weight has {rows} rows, expected "
            f"2 x {kernel} x hidden size {hidden} / group",
            ErrorCode.TENSOR_SHAPE,
        )
    group = hidden // (rows // (2 * kernel))
    facts.agree("conv_kernel_size", facts.own.integer("conv_kernel_size"), kernel, f"{first}.base_kernel")
    facts.agree("conv_group_size", facts.own.integer("conv_group_size"), group, f"{first}.kernel_projection.weight")
    rank = facts.shape(_PREDECESSOR, 2)[1]
    facts.agree("selector_rank", facts.own.integer("selector_rank"), rank, _PREDECESSOR)
    candidates = facts.own.integer("selector_top_k")
    if candidates is None:
        raise missing("selector_top_k", "config", "PATH (a config.json that has it)", facts.origin)
    num_layers(facts)
    extras = {"kernel": kernel, "group": group, "rank": rank, "max_top_k": candidates}
    return read_block_spec(facts, NAME, extras=extras)


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """Backbone, two convolutions per layer, selector."""
    c, extras = spec.layers, spec.extras
    kernel, group, rank = extras["kernel"], extras["group"], extras["rank"]
    shapes = backbone_shapes(spec)
    for i in range(c.num_layers):
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{i}.{name}.base_kernel"] = (2, kernel, c.hidden_size)
            shapes[f"layers.{i}.{name}.kernel_projection.weight"] = (
                2 * kernel * (c.hidden_size // group),
                c.hidden_size,
            )
    shapes |= {_PREDECESSOR: (spec.vocab_size, rank), _SUCCESSOR: (spec.vocab_size, rank)}
    return shapes | {_PROJECTION: (rank, c.hidden_size)}


class Network(Backbone):
    """The backbone with convolutions and the selector, run batched over anchors."""

    rows_depend_on_drafts = True

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        super().__init__(spec, weights, shared)
        self._head = shared.head.adapted(multiplier=spec.output_multiplier, softcap=spec.logit_softcap)

    def around(self, name: str, u: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """`u` [a, B, H] through convolution, sublayer, convolution."""
        extras, hidden = self.spec.extras, u.shape[-1]
        base = self._w[f"{name}_conv.base_kernel"]
        delta = F.linear(u, self._w[f"{name}_conv.kernel_projection.weight"])
        delta = delta.view(*u.shape[:-1], 2, extras["kernel"], hidden // extras["group"])
        kernels = base + delta.repeat_interleave(extras["group"], -1)
        return _filter(kernels[..., 1, :, :], sublayer(_filter(kernels[..., 0, :, :], u)))

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
        num_candidates = self.spec.extras["max_top_k"]
        best = self._head.rank(rows.reshape(-1, rows.shape[-1]), num_candidates)
        shape = (len(anchors), self.spec.drafts, -1)
        ids, logits = best.ids.view(shape), best.logits.view(shape)
        projected = F.linear(rows, self._w[_PROJECTION])
        successors = F.embedding(ids, self._w[_SUCCESSOR])  # [a, K, candidates, r]
        previous = token_ids[sent(anchors, token_ids.device)]
        recorder = recorder_for(self._head, top_k, judge)
        for t in range(self.spec.drafts):
            if t:
                previous = previous_tokens(previous, token_ids, anchors, t, labels=labels)
            query = F.embedding(previous, self._w[_PREDECESSOR]) * projected[:, t]
            scores = logits[:, t] + torch.einsum("ar,acr->ac", query, successors[:, t]).float()
            previous = recorder.candidates(ids[:, t], scores)
        return drafts_of(recorder)


def _filter(kernel: Tensor, x: Tensor) -> Tensor:
    """Causal filter with a kernel per row: kernel [a, B, K, H], x [a, B, H]."""
    out = kernel[:, :, 0] * x
    for t in range(1, min(kernel.shape[2], x.shape[1])):
        out[:, t:] = out[:, t:] + kernel[:, t:, t] * x[:, :-t]
    return out
