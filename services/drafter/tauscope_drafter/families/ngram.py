"""Prompt lookup: propose what followed the last occurrence of the current n-gram. No weights; a floor to compare with.

For anchor p the last n tokens of 0..p are looked up, n from `max_ngram` down to `min_ngram`; the latest earlier
occurrence wins, and the tokens after it are the drafts. Where they run past p, the drafts themselves are read on
(a repeating text goes on repeating). Without any occurrence the anchor's own token is proposed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.weightless import read_weightless_spec, spread
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec

NAME = "ngram"

_MAX_NGRAM, _MIN_NGRAM = 3, 1  # the usual settings of engines


def read(facts: Facts) -> DrafterSpec:
    """Describe it; `extras`: `max_ngram`, `min_ngram`."""
    longest = facts.options.max_ngram or _MAX_NGRAM
    shortest = facts.options.min_ngram or min(_MIN_NGRAM, longest)
    return read_weightless_spec(facts, NAME, extras={"max_ngram": longest, "min_ngram": shortest})


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """None."""
    return {}


class TextContext:
    """Nothing is fused: the tokens are all there is."""

    nbytes = 0


class Network:
    """Looks up tokens; runs on the host."""

    rows_depend_on_drafts = False

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        self.spec = spec

    def fuse(self, states: Tensor, token_ids: Tensor) -> TextContext:
        """Nothing to do."""
        return TextContext()

    def draft(
        self,
        context: TextContext,
        anchors: Sequence[int],
        token_ids: Tensor,
        *,
        top_k: int,
        labels: bool = False,
        judge: JudgeLike | None = None,
    ) -> Drafts:
        """Drafts of a batch of anchors; `labels` changes nothing."""
        tokens = token_ids.tolist()
        drafts = torch.tensor([self._continue(tokens[: p + 1]) for p in anchors])
        return spread(drafts, vocab=self.spec.vocab_size, top_k=top_k, judge=judge)

    def anchor_bytes(self, context_length: int) -> int:
        """Next to nothing."""
        return 8 * self.spec.block_size

    def _continue(self, known: list[int]) -> list[int]:
        found = self._lookup(known)
        text, drafts = list(known), []
        for k in range(self.spec.drafts):
            drafts.append(text[found + k] if found is not None else known[-1])
            text.append(drafts[-1])
        return drafts

    def _lookup(self, known: list[int]) -> int | None:
        """Position after the latest earlier occurrence of the longest n-gram at the end."""
        for n in range(self.spec.extras["max_ngram"], self.spec.extras["min_ngram"] - 1, -1):
            gram = known[-n:]
            if len(gram) < n:
                continue
            for start in range(len(known) - n - 1, -1, -1):
                if known[start : start + n] == gram:
                    return start + n
        return None
