"""EAGLE-3: one causal layer over pairs of (fused target state, next token's embedding), fed its own output to draft
further.

Training unrolls the recurrence over whole sequences ("training-time test"): in unroll s, slot t holds the output of
unroll s-1 at slot t-1.
Letters: B sequences, T slots, H hidden, U unrolls.
"""

import torch
import torch.nn.functional as F
from deploy.demo.train.networks.blocks import MLP, Attention, RMSNorm, initialise, rotary, rotate
from deploy.demo.train.settings import DrafterShape
from torch import nn


class MidLayer(nn.Module):
    """The only layer: its attention reads embedding and state side by side, embedding first."""

    def __init__(self, hidden: int, shape: DrafterShape) -> None:
        super().__init__()
        self.hidden_norm, self.input_layernorm = RMSNorm(hidden), RMSNorm(hidden)
        self.post_attention_layernorm = RMSNorm(hidden)
        self.self_attn = Attention(hidden, shape, width=2 * hidden, with_norms=False)
        self.mlp = MLP(hidden, shape.mlp)


class Eagle3(nn.Module):
    """The drafter with its own head over a reduced vocabulary.

    Args:
        hidden: Width of target and drafter.
        shape: Sizes; three taps; ``block`` is the number of drafted tokens.
        head: Rows of the target's head that start the drafter's own [draft vocab, H].
    """

    def __init__(self, hidden: int, shape: DrafterShape, *, head: torch.Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.taps) * hidden, hidden, bias=False)
        self.midlayer = MidLayer(hidden, shape)
        self.norm = RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, head.shape[0], bias=False)
        initialise(self, 1)
        with torch.no_grad():
            self.lm_head.weight.copy_(head)

    def forward(
        self, embedding: torch.Tensor, features: torch.Tensor, ids: torch.Tensor, unrolls: int
    ) -> list[torch.Tensor]:
        """States for the draft logits of every slot and unroll.

        Args:
            embedding: The target's table [vocab, H].
            features: [B, W, taps * H].
            ids: [B, W]; slot t pairs the state of position t with token t+1, so there are T = W - 1 slots.
            unrolls: How many tokens each slot drafts in a row.

        Returns:
            Per unroll s: normed states [B, T, H]; slot t predicts token t+2 and has seen target states up to position
            t - s only.
        """
        layer, attention = self.midlayer, self.midlayer.self_attn
        B, T = ids.shape[0], ids.shape[1] - 1
        slot = torch.arange(T, device=ids.device)
        turns = rotary(slot.expand(B, -1), attention.head_dim, self.shape.theta, embedding.dtype)
        words = layer.input_layernorm(F.embedding(ids[:, 1:], embedding))
        state = self.fc(features[:, :-1])
        keys, values, masks, out = [], [], [], []
        for unroll in range(unrolls):
            pair = torch.cat((words, layer.hidden_norm(state)), -1)
            k, v = attention.keys_values(pair)
            keys.append(rotate(k, *turns))
            values.append(v)
            distance = slot[:, None] - slot
            masks = [distance >= unroll] + [distance == unroll - s for s in range(1, unroll + 1)]
            mask = torch.cat(masks, -1)
            q = rotate(attention.queries(pair), *turns)
            x = state + attention.attend(q, torch.cat(keys, 2), torch.cat(values, 2), mask[None, None])
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            out.append(self.norm(x))
            state = F.pad(x, (0, 0, 1, 0))[:, :-1]
        return out
