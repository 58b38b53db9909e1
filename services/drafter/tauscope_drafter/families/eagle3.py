"""EAGLE-3 and 3.1: one causal layer that reads fused target states beside token embeddings, and feeds itself.

    g_t = fc([h_a; h_b; h_c]) of position t
    slot t:  u = [input_layernorm(embed(token t+1)); hidden_norm(g_t)]          position t
             x = residual + attention(u);  o_t = x + mlp(post_attention_layernorm(x))
             residual = g_t, or hidden_norm(g_t) with `norm_before_residual`
    lm_head(norm(o_t)) predicts token t+2

Anchor p: slots 0..p-1 are known (slot p-1 holds the anchor's embedding) and shared by all anchors; slot p-1 gives the
first draft. Then slot p-1+j takes o of the slot before (normed with 3.1's `norm_output`) and draft j, position +1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.checkpoint.eagle import read_eagle_spec
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.families.dflash import layer_shapes
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights, drafts_of, previous_tokens, recorder_for
from tauscope_drafter.kernels.availability import has_attention
from tauscope_drafter.network.attention import attend, causal_attention, visibility
from tauscope_drafter.network.norm import rms_norm
from tauscope_drafter.network.rope import Rotary
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec, Window

NAME = "eagle3"

_LIVE_HIDDEN = 10  # copies of a row alive at once in a layer, for the estimate of memory

KeysValues = tuple[Tensor, Tensor]


def read(facts: Facts) -> DrafterSpec:
    """Describe the drafter; `extras` hold the switches, see `checkpoint.eagle`."""
    return read_eagle_spec(facts, NAME)


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """The layer, fc and norms; optional norms of 3.1 where the description has them."""
    return trunk_shapes(spec)


def trunk_shapes(spec: DrafterSpec) -> dict[str, tuple[int, ...]]:
    """Tensors that EAGLE-3 and P-EAGLE share: a first layer of double input width, and plain ones after it."""
    c, taps, wide = spec.layers, len(spec.taps), spec.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (c.hidden_size, taps * wide),
        "norm.weight": (c.hidden_size,),
        "layers.0.hidden_norm.weight": (c.hidden_size,),
    }
    if spec.extras["fc_bias"]:
        shapes["fc.bias"] = (c.hidden_size,)
    if spec.extras["fc_norms"]:
        shapes |= {f"fc_norm.{i}.weight": (wide,) for i in range(taps)}
    if spec.extras["input_norm"]:
        shapes["input_norm.weight"] = (taps * wide,)
    for i in range(c.num_layers):
        width = c.hidden_size * (2 if i == 0 else 1)
        layer = layer_shapes(c, width, qk_norm=spec.extras["qk_norm"])
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


@dataclass(frozen=True, slots=True)
class SlotContext:
    """Known slots of a sequence.

    Attributes:
        layers: rotated keys and values per layer, each [kv, T, hd].
        outputs: [T, H], pre-norm output of every slot.
    """

    layers: tuple[KeysValues, ...]
    outputs: Tensor

    @property
    def nbytes(self) -> int:
        """Memory of all of it."""
        return self.outputs.nbytes + sum(t.nbytes for pair in self.layers for t in pair)


class Trunk:
    """The layers, over a whole sequence and over self-fed slots of many anchors.

    Args:
        spec: complete description.
        weights: tensors of `trunk_shapes`.
        shared: embedding, head, device and dtype.
    """

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        self.spec = spec
        self._c, self._w = spec.layers, weights
        self._embedding = shared.embedding.scaled(spec.embedding_scale)
        self._head = shared.head.adapted(multiplier=spec.output_multiplier, softcap=spec.logit_softcap)
        self._rotary = Rotary(self._c.rope, shared.device, shared.dtype)
        self._device, self._dtype = shared.device, shared.dtype
        self._one_kernel = has_attention(
            shared.device, shared.dtype, self._c.head_dim, rows=self._c.groups * max(1, spec.drafts)
        )

    def fuse(self, states: Tensor, token_ids: Tensor) -> SlotContext:
        """All slots whose state and next token are known; see `Network.fuse` of `family`."""
        length = min(states.shape[1], len(token_ids) - 1)
        g = self._fused(states[:, :length].transpose(0, 1))
        x, u = self._first(self._embedding.rows(token_ids[1 : length + 1]), g)
        tables = self._rotary.tables(torch.arange(length, device=self._device))
        layers: list[KeysValues] = []
        for i in range(self._c.num_layers):
            if i:
                u = self._norm(x, f"layers.{i}.input_layernorm")
            q, key, value = self._project(i, u.unsqueeze(1), (tables[0].unsqueeze(1), tables[1].unsqueeze(1)))
            key, value = key.squeeze(2).contiguous(), value.squeeze(2).contiguous()
            out = causal_attention(q.squeeze(3), key, value, window=None, scale=self._c.attention_scale)
            x = self._finish(i, x, out.unsqueeze(3)).squeeze(1)
            layers.append((key, value))
        return SlotContext(tuple(layers), x)

    def anchor_bytes(self, context_length: int) -> int:
        """Activations of one slot of one anchor, and its own keys and values."""
        c, size = self._c, self.spec.block_size
        row = (_LIVE_HIDDEN * c.hidden_size + 3 * c.intermediate_size) * self._dtype.itemsize
        own = 2 * c.num_layers * size * c.num_kv_heads * c.head_dim * self._dtype.itemsize
        # the first and last anchor of a batch may lie far apart: the masked part then covers the whole context
        scores = c.num_heads * context_length * torch.float32.itemsize
        return row + own + scores

    def _fused(self, features: Tensor) -> Tensor:
        """`fc` over taps [..., P, Ht], with the norms of 3.1 before it."""
        if self.spec.extras["fc_norms"]:
            normed = [self._norm(features[..., i, :], f"fc_norm.{i}") for i in range(features.shape[-2])]
            features = torch.stack(normed, -2)
        flat = features.flatten(-2)
        if self.spec.extras["input_norm"]:
            flat = self._norm(flat, "input_norm")
        return F.linear(flat, self._w["fc.weight"], self._w.get("fc.bias"))

    def _first(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Residual and attention input of the first layer."""
        normed = self._norm(g, "layers.0.hidden_norm")
        u = torch.cat((self._norm(embedded, "layers.0.input_layernorm"), normed), -1)
        return (normed if self.spec.extras["norm_before_residual"] else g), u

    def _project(self, i: int, u: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [kv, groups, a, rows, hd], keys and values [kv, a, rows, hd] of rows `u` [a, rows, width]."""
        c, w, at = self._c, self._w, f"layers.{i}.self_attn"
        lead = u.shape[:-1]

        def heads(name: str, count: int) -> Tensor:
            flat = F.linear(u, w[f"{at}.{name}_proj.weight"], w.get(f"{at}.{name}_proj.bias"))
            x = flat.view(*lead, count, c.head_dim)
            return self._norm(x, f"{at}.{name}_norm") if f"{at}.{name}_norm.weight" in w else x

        q = heads("q", c.num_heads).view(*lead, c.num_kv_heads, c.groups, c.head_dim).permute(2, 3, 0, 1, 4)
        key, value = heads("k", c.num_kv_heads).movedim(-2, 0), heads("v", c.num_kv_heads).movedim(-2, 0)
        return self._rotary.rotate(q, tables), self._rotary.rotate(key, tables), value

    def _finish(self, i: int, x: Tensor, out: Tensor) -> Tensor:
        """Output projection, residual and MLP; `out` [kv, groups, a, rows, hd], `x` [a, rows, H] or [a, H]."""
        c, w, at = self._c, self._w, f"layers.{i}"
        flat = out.permute(2, 3, 0, 1, 4).flatten(2)
        x = x.view(*flat.shape[:2], c.hidden_size)
        x = x + F.linear(flat, w[f"{at}.self_attn.o_proj.weight"], w.get(f"{at}.self_attn.o_proj.bias"))
        u = self._norm(x, f"{at}.post_attention_layernorm")
        gate = F.silu(F.linear(u, w[f"{at}.mlp.gate_proj.weight"])) * F.linear(u, w[f"{at}.mlp.up_proj.weight"])
        return x + F.linear(gate, w[f"{at}.mlp.down_proj.weight"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self._w[f"{name}.weight"], self._c.norm_eps)

    def _own_slots(
        self, x: Tensor, u: Tensor, context: SlotContext, anchors: Sequence[int], *, step: int, own: list[Any]
    ) -> Tensor:
        """Run rows x [a, rows, H] at slots p-1+step.. through all layers; `own` keeps keys and values of each layer."""
        rows = x.shape[1]
        first = sent(anchors, self._device) - 1 + step
        tables = self._rotary.tables(first.unsqueeze(1) + torch.arange(rows, device=self._device))
        # slots 0..p-1 are known; among its own slots a row sees those before it and itself
        window = Window(causal=rows > 1)  # a single row comes last and sees them all
        sees = visibility(
            anchors, window, offsets=range(rows), ends=anchors, device=self._device, fused=self._one_kernel
        )
        for i in range(self._c.num_layers):
            if i:
                u = self._norm(x, f"layers.{i}.input_layernorm")
            q, key, value = self._project(i, u, tables)
            if own[i] is not None:
                key, value = torch.cat((own[i][0], key), 2), torch.cat((own[i][1], value), 2)
            own[i] = (key, value)
            out = attend(q, context.layers[i], own[i], sees=sees, scale=self._c.attention_scale)
            x = self._finish(i, x, out)
        return x


class Network(Trunk):
    """EAGLE-3: every further draft is one more self-fed slot."""

    rows_depend_on_drafts = True

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
        """Drafts of a batch of anchors, free-running unless `labels`."""
        recorder = recorder_for(self._head, top_k, judge)
        first = sent(anchors, self._device)
        tokens, o = token_ids[first], context.outputs[first - 1]
        own: list[Any] = [None] * self._c.num_layers
        for j in range(self.spec.drafts):
            if j:
                tokens = previous_tokens(tokens, token_ids, anchors, j, labels=labels)
                fed = self._norm(o, "norm") if self.spec.extras["norm_output"] else o
                x, u = self._first(self._embedding.rows(tokens), fed)
                o = self._own_slots(x.unsqueeze(1), u.unsqueeze(1), context, anchors, step=j, own=own).squeeze(1)
            tokens = recorder.step(self._norm(o, "norm") if self.spec.extras["head_norm"] else o)
        return drafts_of(recorder)
