"""What is kept of the rows of a drafter: the k best tokens, or how they compare with the target."""

from typing import Protocol

import torch
from torch import Tensor

from tauscope_drafter.head import Correction, Head


class Recorder(Protocol):
    """Takes the rows of a batch of anchors in order of their places; a family uses one of the three ways."""

    def rows(self, hidden: Tensor) -> None:
        """All rows at once, [a, K, H], for families whose rows do not depend on drafted tokens."""
        ...

    def step(self, hidden: Tensor, correction: Correction | None = None) -> Tensor:
        """One row per anchor, [a, H]; gives the drafts int64 [a] in target ids."""
        ...

    def candidates(self, ids: Tensor, logits: Tensor) -> Tensor:
        """One row per anchor over candidates, target ids and logits [a, c] in order; gives the drafts int64 [a]."""
        ...

    def result(self) -> tuple[Tensor, Tensor]:
        """Target ids int64 and log-probs float32, each [a, K, k]; k = 1 and zeros where nothing was ranked."""
        ...


class Ranks:
    """Keeps the k best tokens of every row.

    Args:
        head: ranks, and knows the target ids of draft ids.
        top_k: ids per row.
    """

    def __init__(self, head: Head, top_k: int) -> None:
        self._head, self._top_k = head, top_k
        self._ids: list[Tensor] = []
        self._logprobs: list[Tensor] = []

    def rows(self, hidden: Tensor) -> None:
        """See `Recorder`."""
        best = self._head.rank(hidden.reshape(-1, hidden.shape[-1]), self._top_k)
        shape = (*hidden.shape[:2], -1)
        self._ids += self._head.to_target(best.ids).view(shape).unbind(1)
        self._logprobs += best.logprobs.view(shape).unbind(1)

    def step(self, hidden: Tensor, correction: Correction | None = None) -> Tensor:
        """See `Recorder`."""
        best = self._head.rank(hidden, self._top_k, correction)
        self._ids.append(self._head.to_target(best.ids))
        self._logprobs.append(best.logprobs)
        return self._ids[-1][:, 0]

    def candidates(self, ids: Tensor, logits: Tensor) -> Tensor:
        """See `Recorder`."""
        ordered = logits.float().sort(stable=True, dim=-1, descending=True)  # equal scores stay in order
        self._ids.append(ids.gather(1, ordered.indices)[:, : self._top_k])
        self._logprobs.append(ordered.values.log_softmax(-1)[:, : self._top_k])
        return self._ids[-1][:, 0]

    def result(self) -> tuple[Tensor, Tensor]:
        """See `Recorder`."""
        return torch.stack(self._ids, 1), torch.stack(self._logprobs, 1)


class JudgeLike(Protocol):
    """The part of `expected.Judge` that is needed here."""

    def judge(self, logits: Tensor, target_ids: Tensor | None) -> None:
        """Compare one step."""
        ...


class Judged:
    """Hands every row's logits to a judge.

    Args:
        head: of the drafter.
        judge: compares with the target.
    """

    def __init__(self, head: Head, judge: JudgeLike) -> None:
        self._head, self._judge = head, judge
        self._tokens: list[Tensor] = []

    def rows(self, hidden: Tensor) -> None:
        """See `Recorder`."""
        for row in hidden.unbind(1):
            self.step(row.contiguous())

    def step(self, hidden: Tensor, correction: Correction | None = None) -> Tensor:
        """See `Recorder`."""
        logits = self._head.logits(hidden)
        if correction is not None:
            logits = logits + correction(0, self._head.num_rows)
        return self._take(logits, self._head.target_ids)

    def candidates(self, ids: Tensor, logits: Tensor) -> Tensor:
        """See `Recorder`."""
        return self._take(logits, ids)

    def result(self) -> tuple[Tensor, Tensor]:
        """See `Recorder`."""
        ids = torch.stack(self._tokens, 1).unsqueeze(-1)
        return ids, torch.zeros(ids.shape, device=ids.device)

    def _take(self, logits: Tensor, ids: Tensor | None) -> Tensor:
        self._judge.judge(logits, ids)
        best = logits.argmax(-1)
        if ids is not None:
            best = ids.expand(len(best), -1).gather(1, best.unsqueeze(1)).squeeze(1)
        self._tokens.append(best)
        return best
