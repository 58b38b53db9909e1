"""An oracle with noise: drafts the true next tokens, each wrong with probability `noise`. For tests and calibration.

It reads the future on purpose, so its acceptance is known: rounds of a walk accept `sum_k (1 - noise)^k` drafts on
average. Whether a draft is wrong depends on seed, anchor and place alone, not on the batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.weightless import read_weightless_spec, spread
from tauscope_drafter.families.family import Drafts, Shapes, Shared, Weights
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError

NAME = "oracle"

_DEFAULT_NOISE = 0.2


def read(facts: Facts) -> DrafterSpec:
    """Describe it; `extras`: `noise`, `seed`."""
    noise = _DEFAULT_NOISE if facts.options.noise is None else facts.options.noise
    if not 0 <= noise <= 1:
        raise CheckpointError(f"oracle: noise={noise:g} is outside of 0..1")
    return read_weightless_spec(facts, NAME, extras={"noise": noise, "seed": facts.options.seed or 0})


def tensor_shapes(spec: DrafterSpec) -> Shapes:
    """None."""
    return {}


class OracleContext:
    """Nothing is fused."""

    nbytes = 0


class Network:
    """Reads the labels and spoils some of them."""

    rows_depend_on_drafts = False

    def __init__(self, spec: DrafterSpec, weights: Weights, shared: Shared) -> None:
        self.spec = spec

    def fuse(self, states: Tensor, token_ids: Tensor) -> OracleContext:
        """Nothing to do."""
        return OracleContext()

    def draft(
        self,
        context: OracleContext,
        anchors: Sequence[int],
        token_ids: Tensor,
        *,
        top_k: int,
        labels: bool = False,
        judge: JudgeLike | None = None,
    ) -> Drafts:
        """Drafts of a batch of anchors; past the end of the sequence it repeats the last token."""
        places = torch.tensor(anchors).unsqueeze(1) + torch.arange(1, self.spec.drafts + 1)
        true = token_ids.cpu()[places.clamp_max(len(token_ids) - 1)]
        rows = [self._wrong(p) for p in anchors]
        drafts = torch.where(torch.stack(rows), (true + 1) % self.spec.vocab_size, true)
        return spread(drafts, vocab=self.spec.vocab_size, top_k=top_k, judge=judge)

    def anchor_bytes(self, context_length: int) -> int:
        """Next to nothing."""
        return 64 * self.spec.block_size

    def _wrong(self, anchor: int) -> Tensor:
        """Bool [K]: which drafts of this anchor are spoilt."""
        generator = torch.Generator().manual_seed(self.spec.extras["seed"] * 1_000_003 + anchor)
        noise: float = self.spec.extras["noise"]
        return torch.rand(self.spec.drafts, generator=generator) < noise
