"""A real speculative decoding loop, step by step: draft, verify with the target, accept, repeat.

The slow, obvious reference for the replayed walk. Nothing is cached, so nothing can be rolled back wrongly: the target
reads the whole text in every step (a hybrid's recurrent state cannot be cropped); the drafter recomputes its context.
Everything is float32.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Half-split rotary embedding over the whole head; x is [heads, rows, hd]."""
    half = x.shape[-1] // 2
    angles = positions[:, None].float() * theta ** (-torch.arange(half).float() / half)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class OneBlockDrafter:
    """DFlash in the 1+N layout, one anchor at a time, context and block recomputed from scratch."""

    def __init__(self, folder: Path, embedding: Tensor, head: Tensor) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        if (folder / "model.safetensors").exists():
            weights = load_file(folder / "model.safetensors")
        else:
            weights = torch.load(folder / "checkpoint.pt", weights_only=True)["model_state_dict"]
        self.w = {name: tensor.float() for name, tensor in weights.items()}
        self.embedding, self.head = embedding, head
        self.taps: list[int] = self.config["dflash_config"]["target_layer_ids"]

    def draft(self, states: Tensor, anchor_token: int) -> list[int]:
        """Greedy drafts for the anchor that follows the context.

        Args:
            states: [T, taps * H], positions 0..p-1 of the text.
            anchor_token: the token at position p = T.
        """
        c, w = self.config, self.w
        eps, size, p = c["rms_norm_eps"], c["block_size"], len(states)
        context = norm(states @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
        ids = torch.full((size,), c["dflash_config"]["mask_token_id"])
        ids[0] = anchor_token
        x = self.embedding[ids]
        for i in range(c["num_hidden_layers"]):
            at = f"layers.{i}"
            u = norm(x, w[f"{at}.input_layernorm.weight"], eps)
            x = x + self._attention(f"{at}.self_attn", u, context, p)
            u = norm(x, w[f"{at}.post_attention_layernorm.weight"], eps)
            gate, up, down = (w[f"{at}.mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
            x = x + (F.silu(u @ gate.T) * (u @ up.T)) @ down.T
        rows = norm(x, w["norm.weight"], eps)[1:]
        return [int(i) for i in (rows @ self.head.T).argmax(-1)]

    def _attention(self, at: str, u: Tensor, context: Tensor, p: int) -> Tensor:
        c, w = self.config, self.w
        hd, groups = c["head_dim"], c["num_attention_heads"] // c["num_key_value_heads"]
        source = torch.cat((context, u))

        def heads(x: Tensor, name: str) -> Tensor:
            return (x @ w[f"{at}.{name}_proj.weight"].T).view(len(x), -1, hd).transpose(0, 1)

        positions = torch.arange(p + len(u))
        q = rotate(norm(heads(u, "q"), w[f"{at}.q_norm.weight"], c["rms_norm_eps"]), positions[p:], c["rope_theta"])
        k = rotate(norm(heads(source, "k"), w[f"{at}.k_norm.weight"], c["rms_norm_eps"]), positions, c["rope_theta"])
        k, v = (t.repeat_interleave(groups, 0) for t in (k, heads(source, "v")))
        weights = torch.softmax(q @ k.transpose(1, 2) / hd**0.5, -1)  # the whole context and the whole block
        return (weights @ v).transpose(0, 1).reshape(len(u), -1) @ w[f"{at}.o_proj.weight"].T


@dataclass
class Loop:
    """What a run of the loop did: the text after the prompt, and its rounds."""

    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)


@torch.no_grad()
def speculate(model: Any, drafter: OneBlockDrafter, prompt: list[int], *, limit: int, stop_ids: set[int]) -> Loop:
    """Generate at most `limit` tokens greedily with speculation.

    The first token comes from the prefill. A round adds the accepted drafts and the target's own next token; it is cut
    at the first stop id, inclusive, and at the limit.
    """
    choices, states = _read(model, drafter, prompt)
    loop = Loop(tokens=[choices[-1]])
    while len(loop.tokens) < limit and loop.tokens[-1] not in stop_ids:
        text = prompt + loop.tokens
        block = drafter.draft(states, text[-1])
        choices, all_states = _read(model, drafter, text + block)
        wanted = choices[len(text) - 1 :]  # the target's choice after the anchor and after each draft
        accepted = 0
        while accepted < len(block) and block[accepted] == wanted[accepted]:
            accepted += 1
        new = [*block[:accepted], wanted[accepted]][: limit - len(loop.tokens)]
        stops = [i for i, token in enumerate(new) if token in stop_ids]
        new = new[: stops[0] + 1] if stops else new
        loop.accepted.append(min(accepted, len(new)))
        loop.emitted.append(len(new))
        loop.tokens += new
        states = all_states[: len(prompt) + len(loop.tokens) - 1]
    return loop


@torch.no_grad()
def greedy(model: Any, prompt: list[int], *, limit: int, stop_ids: set[int]) -> list[int]:
    """Plain greedy decoding, one whole forward pass for every token."""
    tokens: list[int] = []
    while len(tokens) < limit and (not tokens or tokens[-1] not in stop_ids):
        tokens.append(int(model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens


def _read(model: Any, drafter: OneBlockDrafter, text: list[int]) -> tuple[list[int], Tensor]:
    """The target's choice after each token of `text`, and its tapped states [len(text), taps * H]."""
    out = model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    assert max(drafter.taps) < model.config.num_hidden_layers - 1  # the last entry is normed and would need a hook
    states = torch.cat([out.hidden_states[i + 1][0] for i in drafter.taps], -1)
    return out.logits[0].argmax(-1).tolist(), states
