"""The loop that benchmarks compare with: one anchor at a time, keys and values of the context kept in a cache.

What a straightforward evaluation does: for every anchor, append the new context row to the cache, run the block
through the layers with dense attention over cache and block, rank the rows. Plain PyTorch, as fast as that shape
allows.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tauscope_drafter.spec import DrafterSpec


class OneAnchorLoop:
    """A DFlash drafter with a growing cache.

    Args:
        spec: description of the drafter.
        weights: its tensors, on the device.
        embedding: [V, H].
        head: [V, H].
        capacity: positions the cache has room for.
    """

    def __init__(
        self, spec: DrafterSpec, weights: Mapping[str, Tensor], embedding: Tensor, head: Tensor, *, capacity: int
    ) -> None:
        self.spec, self.w, self.head = spec, weights, head
        self.c = spec.layers
        device, dtype = head.device, head.dtype
        self.embedding = embedding
        self.mask = embedding[spec.mask_token_id].to(device, dtype)
        shape = (self.c.num_kv_heads, capacity + spec.block_size, self.c.head_dim)
        self.cache = [
            [torch.empty(shape, device=device, dtype=dtype) for _ in range(2)] for _ in range(self.c.num_layers)
        ]
        self.length = 0
        steps = torch.arange(0, self.c.head_dim, 2, device=device, dtype=torch.float32) / self.c.head_dim
        angles = torch.arange(capacity + spec.block_size, device=device).float()[:, None] * self.c.rope.theta**-steps
        angles = torch.cat((angles, angles), -1)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def norm(self, x: Tensor, name: str) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.c.norm_eps)
        return self.w[name] * y.to(x.dtype)

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """x [heads, rows, hd] at positions start.."""
        stop = start + x.shape[1]
        a, b = x.chunk(2, -1)
        return x * self.cos[start:stop] + torch.cat((-b, a), -1) * self.sin[start:stop]

    def keys_values(self, layer: int, rows: Tensor, start: int) -> tuple[Tensor, Tensor]:
        at, c = f"layers.{layer}.self_attn", self.c
        k = F.linear(rows, self.w[f"{at}.k_proj.weight"]).view(-1, c.num_kv_heads, c.head_dim)
        v = F.linear(rows, self.w[f"{at}.v_proj.weight"]).view(-1, c.num_kv_heads, c.head_dim)
        return self.rotate(self.norm(k, f"{at}.k_norm.weight").transpose(0, 1), start), v.transpose(0, 1)

    def append(self, states: Tensor) -> None:
        """Extend the cache by states [P, rows, Ht]."""
        features = states.transpose(0, 1).reshape(states.shape[1], -1)
        ctx = self.norm(F.linear(features, self.w["fc.weight"]), "hidden_norm.weight")
        stop = self.length + len(ctx)
        for layer, pair in enumerate(self.cache):
            for store, new in zip(pair, self.keys_values(layer, ctx, self.length), strict=True):
                store[:, self.length : stop] = new
        self.length = stop

    def draft(self, token: int, top_k: int) -> tuple[Tensor, Tensor]:
        """Ids and log-probs [K, top_k] of the anchor at the end of the cache."""
        c, size, p = self.c, self.spec.block_size, self.length
        x = self.mask.expand(size, -1).clone()
        x[0] = self.embedding[token].to(x.device, x.dtype)
        for layer, (keys, values) in enumerate(self.cache):
            at = f"layers.{layer}"
            u = self.norm(x, f"{at}.input_layernorm.weight")
            q = F.linear(u, self.w[f"{at}.self_attn.q_proj.weight"]).view(size, c.num_heads, c.head_dim)
            q = self.rotate(self.norm(q, f"{at}.self_attn.q_norm.weight").transpose(0, 1), p)
            keys[:, p : p + size], values[:, p : p + size] = self.keys_values(layer, u, p)
            # heads of a group are rows over the same keys: no copy of the cache, and any kernel may run
            folded = q.reshape(1, c.num_kv_heads, c.groups * size, c.head_dim)
            whole = slice(0, p + size)
            out = F.scaled_dot_product_attention(
                folded, keys[None, :, whole], values[None, :, whole], scale=c.attention_scale
            )
            out = out.view(c.num_heads, size, c.head_dim).transpose(0, 1).reshape(size, -1)
            x = x + F.linear(out, self.w[f"{at}.self_attn.o_proj.weight"])
            u = self.norm(x, f"{at}.post_attention_layernorm.weight")
            gate = F.silu(F.linear(u, self.w[f"{at}.mlp.gate_proj.weight"]))
            x = x + F.linear(
                gate * F.linear(u, self.w[f"{at}.mlp.up_proj.weight"]), self.w[f"{at}.mlp.down_proj.weight"]
            )
        rows = self.norm(x, "norm.weight")[self.spec.drafted_rows()]
        logprobs = F.linear(rows, self.head).log_softmax(-1, dtype=torch.float32)
        best = logprobs.topk(top_k, -1)
        return best.indices, best.values


def run_loop(loop: OneAnchorLoop, states: Tensor, tokens: Sequence[int], anchors: Sequence[int], top_k: int) -> Tensor:
    """Draft `anchors` (ascending) one after another; ids [A, K, top_k]."""
    loop.length = 0
    found = []
    for p in anchors:
        loop.append(states[:, loop.length : p])
        found.append(loop.draft(tokens[p], top_k)[0])
    return torch.stack(found)
