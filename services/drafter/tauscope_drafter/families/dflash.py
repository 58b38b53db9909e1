"""DFlash (z-lab): a few transformer layers fill a block of masks in one pass, reading fused target states.

The network, in the order of the computation:

    ctx = hidden_norm(fc([h_tap1; h_tap2; ..]))         once per position; never passed through input_layernorm
    x   = embed([anchor, mask, .., mask])               at positions p..p+B-1
    each layer:  u = input_layernorm(x)
                 q = rope(q_norm(q_proj u));  k = rope(k_norm(k_proj [ctx; u]));  v = v_proj [ctx; u]
                 x = x + o_proj(attention);   x = x + mlp(post_attention_layernorm(x))
    y   = norm(x);  logits = lm_head(y[rows])

Keys and values of the context depend on position and state alone, so they are made once per sequence and shared by all
anchors; an anchor sees those of positions 0..p-1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.checkpoint.blocks import read_block_spec
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights, drafts_of, recorder_for
from tauscope_drafter.kernels.availability import has_attention
from tauscope_drafter.network.attention import Visibility, attend, visibility
from tauscope_drafter.network.norm import rms_norm
from tauscope_drafter.network.rope import Rotary
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import BackboneSpec, DrafterSpec, Window

NAME = "dflash"

# Copies of a block's rows alive at once inside a layer: residual, normed input, projections, attention output.
_LIVE_HIDDEN = 8
_LIVE_MLP = 3
_FRINGE_KEYS = 64  # typical number of keys in the masked part of attention, for the estimate of memory


def read(facts: Facts) -> DrafterSpec:
    """Describe the drafter; DFlash has no numbers of its own."""
    return read_block_spec(facts, NAME, extras={})


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """All tensors of the network."""
    return backbone_shapes(spec)


def backbone_shapes(spec: DrafterSpec) -> dict[str, tuple[int, ...]]:
    """Tensors that DFlash, DFlash2, DSpark and Domino share."""
    c = spec.layers
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (c.hidden_size, len(spec.taps) * spec.target_hidden_size),
        "hidden_norm.weight": (c.hidden_size,),
        "norm.weight": (c.hidden_size,),
    }
    for i in range(c.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer_shapes(c, c.hidden_size).items()}
    return shapes


def layer_shapes(c: BackboneSpec, attention_input: int, *, qk_norm: bool = True) -> dict[str, tuple[int, ...]]:
    """Tensors of one Qwen3-style layer whose attention reads rows of width `attention_input`."""
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (c.hidden_size,),
        "post_attention_layernorm.weight": (c.hidden_size,),
        "self_attn.q_proj.weight": (q, attention_input),
        "self_attn.k_proj.weight": (kv, attention_input),
        "self_attn.v_proj.weight": (kv, attention_input),
        "self_attn.o_proj.weight": (c.hidden_size, q),
        "mlp.gate_proj.weight": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj.weight": (c.intermediate_size, c.hidden_size),
        "mlp.down_proj.weight": (c.hidden_size, c.intermediate_size),
    }
    if qk_norm:
        shapes |= {"self_attn.q_norm.weight": (c.head_dim,), "self_attn.k_norm.weight": (c.head_dim,)}
    if c.attention_bias:
        shapes |= {
            "self_attn.q_proj.bias": (q,),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.bias": (c.hidden_size,),
        }
    return shapes


@dataclass(frozen=True, slots=True)
class BlockContext:
    """Rotated keys and values of every context position, one pair per layer, each [kv, T, hd]."""

    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def length(self) -> int:
        """T: positions 0..T-1 are covered."""
        return self.layers[0][0].shape[1]

    @property
    def nbytes(self) -> int:
        """Memory of all keys and values."""
        return sum(t.nbytes for pair in self.layers for t in pair)


class Backbone:
    """The DFlash network up to its norm; heads are what the families add.

    Args:
        spec: complete description; `spec.layers` gives the shape.
        weights: tensors of `backbone_shapes`, on the compute device in the compute dtype.
        shared: embedding, device and dtype.
    """

    rows_depend_on_drafts = False
    context_shift = 0
    """Where the context of anchor p ends, from p; only `probing` changes it."""

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        self.spec = spec
        self._c = spec.layers
        self._w = weights
        self._embedding = shared.embedding.scaled(spec.embedding_scale)
        self._rotary = Rotary(self._c.rope, shared.device, shared.dtype)
        self._device, self._dtype = shared.device, shared.dtype
        self._one_kernel = has_attention(
            shared.device, shared.dtype, self._c.head_dim, rows=self._c.groups * spec.block_size
        )
        if spec.mask_token_id is None:
            raise TypeError(f"{spec.family} needs a mask token id")
        self._mask_row = self._embedding.rows(torch.tensor([spec.mask_token_id]))

    def fuse(self, states: Tensor, token_ids: Tensor) -> BlockContext:
        """Keys and values of the context; see `Network.fuse`."""
        c, w = self._c, self._w
        length = states.shape[1]
        features = states.transpose(0, 1).reshape(length, -1)  # [T, P*Ht], taps in the order of fc's columns
        ctx = rms_norm(F.linear(features, w["fc.weight"]), w["hidden_norm.weight"], c.norm_eps)
        tables = self._rotary.tables(torch.arange(length, device=self._device))
        layers = []
        for i in range(c.num_layers):
            key, value = self._keys_values(i, ctx)
            layers.append((self._rotary.rotate(key, tables).contiguous(), value.contiguous()))
        return BlockContext(tuple(layers))

    def block(self, context: BlockContext, anchors: Sequence[int], token_ids: Tensor) -> Tensor:
        """Output of the drafter's norm for every row of every block: [a, B, H]."""
        c, w, size = self._c, self._w, self.spec.block_size
        first = sent(anchors, self._device)
        positions = first.unsqueeze(1) + torch.arange(size, device=self._device)
        tables = self._rotary.tables(positions)
        seen = self._seen(anchors)
        x = self._mask_row.expand(len(anchors), size, c.hidden_size).clone()
        x[:, 0] = self._embedding.rows(token_ids[first])
        for i in range(c.num_layers):
            at = f"layers.{i}"
            sees = seen[c.windows[i]]
            u = rms_norm(x, w[f"{at}.input_layernorm.weight"], c.norm_eps)
            x = x + self.around(f"{at}.attention", u, partial(self._attention, i, context, sees, tables))
            u = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], c.norm_eps)
            x = x + self.around(f"{at}.mlp", u, partial(self._mlp, i))
        return rms_norm(x, w["norm.weight"], c.norm_eps)

    def around(self, name: str, u: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """One sublayer on normed rows `u` [a, B, H]; DFlash2 puts its convolutions here."""
        return sublayer(u)

    def anchor_bytes(self, context_length: int) -> int:
        """Activations of one block, attention scores included."""
        c, size = self._c, self.spec.block_size
        row = (_LIVE_HIDDEN * c.hidden_size + _LIVE_MLP * c.intermediate_size) * self._dtype.itemsize
        attention = c.num_heads * (2 * (_FRINGE_KEYS + size) + 4 * c.head_dim) * torch.float32.itemsize
        return size * (row + attention)

    def _seen(self, anchors: Sequence[int]) -> dict[Window, Visibility]:
        offsets = range(self.spec.block_size)
        ends = [p + self.context_shift for p in anchors]
        return {
            window: visibility(anchors, window, offsets=offsets, ends=ends, device=self._device, fused=self._one_kernel)
            for window in set(self._c.windows)
        }

    def _attention(
        self, i: int, context: BlockContext, sees: Visibility, tables: tuple[Tensor, Tensor], u: Tensor
    ) -> Tensor:
        c, w, at = self._c, self._w, f"layers.{i}.self_attn"
        num_anchors, size, _ = u.shape
        q = F.linear(u, w[f"{at}.q_proj.weight"], w.get(f"{at}.q_proj.bias"))
        q = rms_norm(q.view(num_anchors, size, c.num_heads, c.head_dim), w[f"{at}.q_norm.weight"], c.norm_eps)
        q = q.view(num_anchors, size, c.num_kv_heads, c.groups, c.head_dim).permute(2, 3, 0, 1, 4)
        key, value = self._keys_values(i, u)
        out = attend(
            self._rotary.rotate(q, tables),
            context.layers[i],
            (self._rotary.rotate(key, tables), value),
            sees=sees,
            scale=c.attention_scale,
        )
        out = out.permute(2, 3, 0, 1, 4).reshape(num_anchors, size, c.num_heads * c.head_dim)
        return F.linear(out, w[f"{at}.o_proj.weight"], w.get(f"{at}.o_proj.bias"))

    def _keys_values(self, i: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Normed, unrotated keys and values [kv, .., hd] of context rows [T, H] or block rows [a, B, H]."""
        c, w, at = self._c, self._w, f"layers.{i}.self_attn"
        heads = (*rows.shape[:-1], c.num_kv_heads, c.head_dim)
        k = F.linear(rows, w[f"{at}.k_proj.weight"], w.get(f"{at}.k_proj.bias")).view(heads)
        v = F.linear(rows, w[f"{at}.v_proj.weight"], w.get(f"{at}.v_proj.bias")).view(heads)
        return rms_norm(k, w[f"{at}.k_norm.weight"], c.norm_eps).movedim(-2, 0), v.movedim(-2, 0)

    def _mlp(self, i: int, u: Tensor) -> Tensor:
        w, at = self._w, f"layers.{i}.mlp"
        gate = F.silu(F.linear(u, w[f"{at}.gate_proj.weight"]))
        return F.linear(gate.mul_(F.linear(u, w[f"{at}.up_proj.weight"])), w[f"{at}.down_proj.weight"])


class Network(Backbone):
    """DFlash with its head: every drafted row is ranked by itself."""

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
        """Drafts of a batch of anchors; `labels` changes nothing, rows do not depend on earlier drafts."""
        rows = self.block(context, anchors, token_ids)[:, self.spec.drafted_rows()]
        recorder = recorder_for(self._head, top_k, judge)
        recorder.rows(rows)
        return drafts_of(recorder)
