"""Expected acceptance under sampling: sum over x of min(p(x), q(x)), from the target's states and head.

p is the target's distribution after the tokens of the text, q the drafter's for the same place, both processed by the
same sampling settings over the full vocabulary; q is zero outside a cut draft vocabulary and is not renormalised for p.
These are expectations along a given text: later places are conditioned on its tokens and not on accepted samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tauscope_drafter.contract import Sampling
from tauscope_drafter.head import Head
from tauscope_drafter.sampling import distribution


class Judge:
    """Compares the rows of a batch of anchors with the target, step by step.

    Args:
        final_states: [T, Ht], the target's states after its final norm, positions 0..T-1.
        head: the target's.
        anchors: positions p of the batch; the row of step j is compared with the target after position p + j.
        sampling: settings for both distributions.
    """

    def __init__(self, final_states: Tensor, head: Head, anchors: Sequence[int], sampling: Sampling) -> None:
        self._states, self._head, self._sampling = final_states, head, sampling
        self._anchors = torch.tensor(anchors, device=final_states.device)
        self._sampled: list[Tensor] = []
        self._greedy: list[Tensor] = []

    def judge(self, logits: Tensor, target_ids: Tensor | None) -> None:
        """Compare one step.

        Args:
            logits: [a, n] of the drafter, in engine dtype.
            target_ids: int64 [n] or [a, n], the tokens of the columns; None when they are the whole vocabulary.
        """
        logits = logits.to(self._states.device)
        places = self._anchors + len(self._sampled)
        inside = places < len(self._states)
        p = distribution(self._head.logits(self._states[places.clamp_max(len(self._states) - 1)]), self._sampling)
        q = distribution(logits, self._sampling)
        if target_ids is not None:
            columns = target_ids.to(p.device).expand(q.shape[0], -1)
            p = p.gather(1, columns)  # only these columns can overlap: q is zero elsewhere
        best = logits.argmax(-1, keepdim=True)
        outside = torch.full((), torch.nan, device=p.device)
        self._sampled.append(torch.where(inside, torch.minimum(p, q).sum(-1), outside))
        self._greedy.append(torch.where(inside, p.gather(1, best).squeeze(1), outside))

    def rates(self) -> tuple[Tensor, Tensor]:
        """float32 [a, K] twice: probability of acceptance of a sampled draft, and of the drafter's best token.

        NaN where the text has no position.
        """
        return torch.stack(self._sampled, 1), torch.stack(self._greedy, 1)
