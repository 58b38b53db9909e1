"""Multi-token prediction head of Qwen3.5-type targets, read from the target's own checkpoint.

    slot t:  x = fc([pre_fc_norm_embedding(embed(token t+1)); pre_fc_norm_hidden(h_t)])
             one gated full-attention layer of the target's kind at position t;  y_t = norm(x)
             lm_head(y_t) predicts token t+2

h_t is the target's state after its final norm (`mtp_hidden=post`, engines) or before it (`pre`). Next slots take y of
the slot before and the draft, position +1. All norms are of the kind 1 + w; rotation is partial.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.mtp import read_mtp_spec
from tauscope_drafter.families.dflash import layer_shapes
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights, drafts_of, previous_tokens, recorder_for
from tauscope_drafter.kernels.availability import has_attention
from tauscope_drafter.network.attention import attend, causal_attention, visibility
from tauscope_drafter.network.norm import rms_norm, rms_norm_one_plus
from tauscope_drafter.network.rope import Rotary
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec, Window
from tauscope_wire.errors import CheckpointError, ErrorCode

NAME = "mtp"

_LIVE_HIDDEN = 12  # copies of a row alive at once in the layer, for the estimate of memory

# speculators' names of the same tensors
_RENAMED = {
    "input_proj.": "fc.",
    "token_layernorm.": "pre_fc_norm_embedding.",
    "hidden_layernorm.": "pre_fc_norm_hidden.",
    "final_layernorm.": "norm.",
}


def canonical_name(name: str) -> str:
    """Names inside a target's checkpoint, and speculators' names, to one form without prefix."""
    if name.startswith("mtp_layers.0."):
        rest = name.removeprefix("mtp_layers.0.")
        start = next((s for s in _RENAMED if rest.startswith(s)), None)
        return f"layers.0.{rest}" if start is None else _RENAMED[start] + rest.removeprefix(start)
    return name.partition("mtp.")[2] if name.startswith("mtp.") or ".mtp." in name else name


def read(facts: Facts) -> DrafterSpec:
    """Describe the head; `extras`: `hidden` is `post` or `pre`."""
    return read_mtp_spec(facts, NAME)


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """One gated layer and the parts around it; embedding and head are the target's."""
    c, wide = spec.layers, spec.layers.hidden_size
    layer = layer_shapes(c, wide)
    layer["self_attn.q_proj.weight"] = (2 * c.num_heads * c.head_dim, wide)  # query and gate, head by head
    if c.attention_bias:
        layer["self_attn.q_proj.bias"] = (2 * c.num_heads * c.head_dim,)
    return {
        "fc.weight": (wide, 2 * wide),
        "pre_fc_norm_embedding.weight": (wide,),
        "pre_fc_norm_hidden.weight": (wide,),
        "norm.weight": (wide,),
        **{f"layers.0.{name}": shape for name, shape in layer.items()},
    }


@dataclass(frozen=True, slots=True)
class HeadContext:
    """Known slots: rotated keys and values [kv, T, hd], and normed outputs [T, H]."""

    keys: Tensor
    values: Tensor
    outputs: Tensor

    @property
    def nbytes(self) -> int:
        """Memory of all of it."""
        return self.keys.nbytes + self.values.nbytes + self.outputs.nbytes


class Network:
    """The head, over a whole sequence and over self-fed slots of many anchors.

    Raises:
        CheckpointError: `mtp_hidden=post` and no target to take the final norm from.
    """

    rows_depend_on_drafts = True

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        self.spec = spec
        self._c, self._w = spec.layers, weights
        self._embedding, self._head = shared.embedding, shared.head
        self._rotary = Rotary(self._c.rope, shared.device, shared.dtype)
        self._device, self._dtype = shared.device, shared.dtype
        self._one_kernel = has_attention(shared.device, shared.dtype, self._c.head_dim, rows=self._c.groups)
        self._final, self._final_eps = shared.final_norm, shared.norm_eps
        if spec.extras["hidden"] == "post" and self._final is None:
            raise CheckpointError(
                "an MTP head reads states after the target's final norm; give --target-model DIR",
                ErrorCode.TENSOR_MISSING,
            )

    def fuse(self, states: Tensor, token_ids: Tensor) -> HeadContext:
        """All slots whose state and next token are known; `states` is [1, T, Ht], the last layer before its norm."""
        length = min(states.shape[1], len(token_ids) - 1)
        h = states[0, :length]
        if self.spec.extras["hidden"] == "post" and self._final is not None:
            h = rms_norm(h.float(), self._final.float(), self._final_eps).to(self._dtype)
        x = self._joined(self._embedding.rows(token_ids[1 : length + 1]), h).unsqueeze(1)
        tables = self._rotary.tables(torch.arange(length, device=self._device).unsqueeze(1))
        q, gate, key, value = self._project(x, tables)
        key, value = key.squeeze(2).contiguous(), value.squeeze(2).contiguous()
        out = causal_attention(q.squeeze(3), key, value, window=None, scale=self._c.attention_scale)
        return HeadContext(key, value, self._finish(x, out.unsqueeze(3), gate).squeeze(1))

    def draft(
        self,
        context: HeadContext,
        anchors: Sequence[int],
        token_ids: Tensor,
        *,
        top_k: int,
        labels: bool = False,
        judge: JudgeLike | None = None,
    ) -> Drafts:
        """Drafts of a batch of anchors, free-running unless `labels`."""
        recorder = recorder_for(self._head, top_k, judge)
        first = sent(anchors, self._device) - 1
        tokens, y = token_ids[first + 1], context.outputs[first]
        sees = visibility(
            anchors, Window(), offsets=range(1), ends=anchors, device=self._device, fused=self._one_kernel
        )
        own: tuple[Tensor, Tensor] | None = None
        for j in range(self.spec.drafts):
            if j:
                tokens = previous_tokens(tokens, token_ids, anchors, j, labels=labels)
                x = self._joined(self._embedding.rows(tokens), y).unsqueeze(1)
                q, gate, key, value = self._project(x, self._rotary.tables((first + j).unsqueeze(1)))
                own = (key, value) if own is None else (torch.cat((own[0], key), 2), torch.cat((own[1], value), 2))
                known = (context.keys, context.values)
                out = attend(q, known, own, sees=sees, scale=self._c.attention_scale)
                y = self._finish(x, out, gate).squeeze(1)
            tokens = recorder.step(y)
        return drafts_of(recorder)

    def anchor_bytes(self, context_length: int) -> int:
        """Activations of one slot of one anchor, and its own keys and values."""
        c, size = self._c, self.spec.block_size
        row = (_LIVE_HIDDEN * c.hidden_size + 3 * c.intermediate_size) * self._dtype.itemsize
        own = 2 * size * c.num_kv_heads * c.head_dim * self._dtype.itemsize
        return row + own + c.num_heads * context_length * torch.float32.itemsize

    def _joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        parts = (self._norm(embedded, "pre_fc_norm_embedding"), self._norm(hidden, "pre_fc_norm_hidden"))
        return F.linear(torch.cat(parts, -1), self._w["fc.weight"])

    def _project(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries [kv, groups, a, rows, hd], gate [a, rows, heads*hd], keys and values [kv, a, rows, hd]."""
        c, w, at = self._c, self._w, "layers.0.self_attn"
        u = self._norm(x, "layers.0.input_layernorm")
        lead = u.shape[:-1]

        def project(name: str, count: int, width: int) -> Tensor:
            flat = F.linear(u, w[f"{at}.{name}_proj.weight"], w.get(f"{at}.{name}_proj.bias"))
            return flat.view(*lead, count, width)

        q, gate = project("q", c.num_heads, 2 * c.head_dim).chunk(2, -1)
        q = self._norm(q, f"{at}.q_norm").view(*lead, c.num_kv_heads, c.groups, c.head_dim).permute(2, 3, 0, 1, 4)
        key = self._norm(project("k", c.num_kv_heads, c.head_dim), f"{at}.k_norm").movedim(-2, 0)
        value = project("v", c.num_kv_heads, c.head_dim).movedim(-2, 0)
        return self._rotary.rotate(q, tables), gate.flatten(-2), self._rotary.rotate(key, tables), value

    def _finish(self, x: Tensor, out: Tensor, gate: Tensor) -> Tensor:
        """Gated output projection, residual, MLP and the head's norm; `out` [kv, groups, a, rows, hd]."""
        w, at = self._w, "layers.0"
        flat = out.permute(2, 3, 0, 1, 4).flatten(2) * torch.sigmoid(gate)
        x = x + F.linear(flat, w[f"{at}.self_attn.o_proj.weight"], w.get(f"{at}.self_attn.o_proj.bias"))
        u = self._norm(x, f"{at}.post_attention_layernorm")
        inner = F.silu(F.linear(u, w[f"{at}.mlp.gate_proj.weight"])) * F.linear(u, w[f"{at}.mlp.up_proj.weight"])
        return self._norm(x + F.linear(inner, w[f"{at}.mlp.down_proj.weight"]), "norm")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm_one_plus(x, self._w[f"{name}.weight"], self._c.norm_eps)
