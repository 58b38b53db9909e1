"""DSpark: a DFlash backbone in the anchor-first layout with a vanilla Markov head and a confidence head (DeepSpec's
network).
"""

import torch
import torch.nn.functional as F
from deploy.demo.train.networks.blocks import INIT_STD
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.settings import DrafterShape
from torch import nn


class MarkovHead(nn.Module):
    """Low-rank bias of the next token given the previous one: ``W2 (W1[prev])``."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=INIT_STD)
        nn.init.normal_(self.markov_w2.weight, std=INIT_STD)


class ConfidenceHead(nn.Module):
    """Logit of a draft token being accepted, from the draft state and the previous token's Markov embedding."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)


class DSpark(DFlash):
    """Row j predicts the token after position anchor + j, so S rows give S drafts."""

    def __init__(self, hidden: int, shape: DrafterShape, *, mask_id: int, vocab: int, rank: int) -> None:
        super().__init__(hidden, shape, mask_id=mask_id)
        self.rank = rank
        self.markov_head = MarkovHead(vocab, rank)
        self.confidence_head = ConfidenceHead(hidden + rank)

    def heads(
        self, states: torch.Tensor, previous: torch.Tensor, head: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and confidence logits with the previous tokens given (teacher-forced; identical to free running up
        to the first miss).

        Args:
            states: [B, A, S, H] of the backbone.
            previous: [B, A, S] the token before each predicted one; the anchor for the first.
            head: The target's head [vocab, H].

        Returns:
            Logits [B, A, S, vocab] and confidence logits [B, A, S].
        """
        before = F.embedding(previous, self.markov_head.markov_w1.weight)
        logits = F.linear(states, head) + self.markov_head.markov_w2(before)
        confidence = self.confidence_head.proj(torch.cat((states, before.to(states.dtype)), -1))
        return logits, confidence[..., 0]
