"""What every family offers, so that loader, engine and probes need not know which one they hold.

A family module has three things:

    read(declared, tensors)   the rest of the specification, from configuration and tensor shapes
    tensor_shapes(spec)       name -> shape of every tensor the network needs; the loader refuses any difference
    Network(spec, weights, shared)
                              fuse(..) once per sequence, draft(..) per batch of anchors
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tauscope_drafter.head import Embedding, Head
from tauscope_drafter.network.transfer import sent
from tauscope_drafter.recording import Judged, JudgeLike, Ranks, Recorder
from tauscope_drafter.spec import DrafterSpec

_FOLLOWS_LABELS = (
    "rows follow the text's own tokens: acceptance of chains and of the k best per row is exact (a branch is ranked "
    "after its own tokens, and the one that counts is the text); trees with a budget are an estimate, because their "
    "other branches are ranked by the rows of the text"
)

Shapes = Mapping[str, tuple[int, ...]]
Weights = Mapping[str, Tensor]


class Drafts(NamedTuple):
    """Drafts of a batch of anchors, in target ids.

    Attributes:
        token_ids: int64 [a, K], the drafts as a server would propose them.
        top_ids: int64 [a, K, k].
        top_logprobs: float32 [a, K, k].
    """

    token_ids: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Shared:
    """What drafters take from elsewhere, one copy for all of them.

    Attributes:
        embedding: token rows.
        head: output head of this drafter (the target's, or its own).
        device, dtype: of all computation.
        final_norm: weight of the target's final norm as it multiplies (`1 + w` already added), for families that read
            it; None when it is not at hand.
        norm_eps: of that norm.
    """

    embedding: Embedding
    head: Head
    device: torch.device
    dtype: torch.dtype
    final_norm: Tensor | None = None
    norm_eps: float = 1e-6


def previous_tokens(own: Tensor, token_ids: Tensor, anchors: Sequence[int], step: int, *, labels: bool) -> Tensor:
    """Tokens at anchor + step that a sequential head reads next: its own drafts, or the labels where there are any.

    Args:
        own: int64 [a], drafts of the step before, in target ids.
        token_ids: int64 [n], the whole sequence.
        anchors: positions p of the batch.
        step: the tokens lie at p + step.
        labels: take them from the sequence; past its end the drafts are kept, nothing is counted there.
    """
    if not labels:
        return own
    places = sent(anchors, own.device) + step
    inside = places < len(token_ids)
    return torch.where(inside, token_ids[places.clamp_max(len(token_ids) - 1)], own)


def label_warnings(network: "Network", *, labels: bool) -> list[str]:
    """What the reader of rows must know that were made with the labels before them."""
    return [_FOLLOWS_LABELS] if labels and network.rows_depend_on_drafts else []


def recorder_for(head: Head, top_k: int, judge: JudgeLike | None) -> Recorder:
    """What keeps the rows of a batch: their k best tokens, or a judge's comparison with the target."""
    return Ranks(head, top_k) if judge is None else Judged(head, judge)


def drafts_of(recorder: Recorder) -> Drafts:
    """All rows that a recorder took."""
    ids, logprobs = recorder.result()
    return Drafts(ids[..., 0], ids, logprobs)


class Context(Protocol):
    """Whatever a family keeps per sequence; shared by all anchors and never changed."""

    @property
    def nbytes(self) -> int:
        """Memory it holds, for the cache's budget."""
        ...


class Network(Protocol):
    """A loaded drafter.

    Attributes:
        spec: its description.
        rows_depend_on_drafts: whether a row reads the drafts before it, so that `labels` changes rows after a miss.
    """

    spec: DrafterSpec
    rows_depend_on_drafts: bool

    def fuse(self, states: Tensor, token_ids: Tensor) -> Any:
        """Everything that depends on the sequence alone.

        Args:
            states: [P, T, Ht] in the compute dtype, planes in the order of `spec.taps`; row t belongs to position t.
            token_ids: int64 [>= T] on the compute device.
        """
        ...

    def draft(
        self,
        context: Any,
        anchors: Sequence[int],
        token_ids: Tensor,
        *,
        top_k: int,
        labels: bool = False,
        judge: JudgeLike | None = None,
    ) -> Drafts:
        """Drafts of a batch of anchors; the caller bounds the batch by `anchor_bytes`.

        Args:
            context: from `fuse`, covering at least positions 0..max(anchors)-1.
            anchors: ascending positions p >= 1; the token at p is known, its state is not used.
            token_ids: int64 [n] on the compute device, the whole sequence.
            top_k: ids and log-probs per row; fewer come back where the family ranks fewer.
            labels: previous tokens of sequential heads come from `token_ids` where it has them.
            judge: gets the logits of every row; then nothing is ranked.
        """
        ...

    def anchor_bytes(self, context_length: int) -> int:
        """Activations one anchor needs, roughly, logits not counted."""
        ...
