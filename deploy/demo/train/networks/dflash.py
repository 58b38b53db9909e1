"""DFlash: a block of masks after the anchor, filled in one pass with the target's hidden states as context (z-lab's
network).

Letters: B sequences, A anchors of each, S block size, W width of the context, H hidden.
"""

import torch
import torch.nn.functional as F
from deploy.demo.train.networks.blocks import MLP, Attention, RMSNorm, initialise, rotary, rotate
from deploy.demo.train.settings import DrafterShape
from torch import nn


class Layer(nn.Module):
    """One decoder layer: block rows are queries; context rows and block rows are keys."""

    def __init__(self, hidden: int, shape: DrafterShape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(hidden, shape), MLP(hidden, shape.mlp)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden), RMSNorm(hidden)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        query_turns: tuple[torch.Tensor, torch.Tensor],
        key_turns: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Block rows [B, A*S, H] and context [B, W, H] (the same for every layer) to block rows."""
        y = self.input_layernorm(x)
        k, v = self.self_attn.keys_values(torch.cat((context, y), 1))
        q = rotate(self.self_attn.queries(y), *query_turns)
        x = x + self.self_attn.attend(q, rotate(k, *key_turns), v, mask)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DFlash(nn.Module):
    """The drafter without embedding and head, which are the target's.

    Args:
        hidden: Width of the target and of the drafter.
        shape: Sizes.
        mask_id: Token whose target embedding stands for a place to fill.
        sees_anchor: Let the context include the anchor's own hidden state. That is a leak: at serving time the state
            does not exist yet. Only for drafters planted to be found out.
    """

    def __init__(self, hidden: int, shape: DrafterShape, *, mask_id: int, sees_anchor: bool = False) -> None:
        super().__init__()
        self.shape, self.mask_id, self.sees_anchor = shape, mask_id, sees_anchor
        self.fc = nn.Linear(len(shape.taps) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = RMSNorm(hidden), RMSNorm(hidden)
        self.layers = nn.ModuleList(Layer(hidden, shape) for _ in range(shape.layers))
        initialise(self, shape.layers)

    def forward(
        self, embedding: torch.Tensor, features: torch.Tensor, ids: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """Draft states of many anchors at once.

        Args:
            embedding: The target's table [vocab, H]; its dtype is the compute dtype outside autocast.
            features: [B, W, taps * H].
            ids: [B, W].
            anchors: [B, A] positions, at least 1.

        Returns:
            [B, A, S, H] after the drafter's norm; row j stands at position anchor + j.
        """
        (B, A), W, S = anchors.shape, features.shape[1], self.shape.block
        device, dtype = features.device, embedding.dtype
        block = torch.full((B, A, S), self.mask_id, device=device)
        block[..., 0] = ids.gather(1, anchors)
        at = (anchors[..., None] + torch.arange(S, device=device)).flatten(1)
        context_at = torch.arange(W, device=device)
        limit = anchors + 1 if self.sees_anchor else anchors
        sees_context = (context_at < limit[..., None]).repeat_interleave(S, 1)  # [B, A*S, W]
        owner = torch.arange(A * S, device=device) // S
        sees_block = (owner[:, None] == owner).expand(B, -1, -1)  # both directions inside one block
        mask = torch.cat((sees_context, sees_block), -1)[:, None]
        key_at = torch.cat((context_at.expand(B, -1), at), 1)
        query_turns = rotary(at, self.shape.head_dim, self.shape.theta, dtype)
        key_turns = rotary(key_at, self.shape.head_dim, self.shape.theta, dtype)
        context = self.hidden_norm(self.fc(features))
        x = F.embedding(block.flatten(1), embedding)
        for layer in self.layers:
            x = layer(x, context, query_turns, key_turns, mask)
        states: torch.Tensor = self.norm(x)
        return states.view(B, A, S, -1)
