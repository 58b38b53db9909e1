"""Losses of the drafter families on a batch of anchors."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from deploy.demo.train.answers import Prefill
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.networks.dspark import DSpark
from deploy.demo.train.networks.eagle3 import Eagle3


@dataclass
class Batch:
    """Buffers that the captured step reads: rows of the prefill [B] and anchor positions [B, A]."""

    rows: torch.Tensor
    anchors: torch.Tensor


class Head(NamedTuple):
    """The rows of a target's head that a training softmax covers.

    Attributes:
        rows: [scored, hidden].
        places: [vocab] place of each token among them; None when they are the whole head.
    """

    rows: torch.Tensor
    places: torch.Tensor | None = None


def block_labels(
    ids: torch.Tensor, ends: torch.Tensor, anchors: torch.Tensor, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens at anchor + 1 .. anchor + block and whether they exist: both [B, A, block]."""
    at = anchors[..., None] + torch.arange(1, block + 1, device=ids.device)
    exists = at < ends[:, None, None]
    labels = ids.gather(1, at.clamp(max=ids.shape[1] - 1).flatten(1)).view_as(at)
    return labels, exists


def decayed_loss(logits: torch.Tensor, labels: torch.Tensor, exists: torch.Tensor, decay: float) -> torch.Tensor:
    """Cross-entropy over [B, A, K, V] with weight ``exp(-k / decay)`` for the k-th draft: early drafts decide how
    many are accepted.
    """
    entropy = F.cross_entropy(logits.float().flatten(0, 2), labels.flatten(), reduction="none").view_as(labels)
    weight = exists * torch.exp(-torch.arange(labels.shape[-1], device=labels.device) / decay)
    return (entropy * weight).sum() / weight.sum()


def dflash_loss(
    network: DFlash,
    data: Prefill,
    *,
    batch: Batch,
    embedding: torch.Tensor,
    taps: tuple[int, ...],
    decay: float,
    head: Head | None = None,
) -> torch.Tensor:
    """Loss of the fill-in layout: rows 1..S-1 predict their own positions. Without ``head``, the embedding is it."""
    rows, places = Head(embedding) if head is None else head
    ids = data.ids[batch.rows]
    states = network(embedding, data.taps(taps, batch.rows), ids, batch.anchors)
    labels, exists = block_labels(ids, data.total_tokens[batch.rows], batch.anchors, network.shape.block - 1)
    return decayed_loss(F.linear(states[:, :, 1:], rows), labels if places is None else places[labels], exists, decay)


CONFIDENCE_WEIGHT = 0.1


def dspark_loss(
    network: DSpark,
    data: Prefill,
    *,
    batch: Batch,
    embedding: torch.Tensor,
    taps: tuple[int, ...],
    decay: float,
) -> torch.Tensor:
    """Loss of the anchor-first layout with teacher-forced previous tokens; the confidence head learns whether the
    draft is right.
    """
    ids = data.ids[batch.rows]
    states = network(embedding, data.taps(taps, batch.rows), ids, batch.anchors)
    labels, exists = block_labels(ids, data.total_tokens[batch.rows], batch.anchors, network.shape.block)
    previous = torch.cat((ids.gather(1, batch.anchors)[..., None], labels[..., :-1]), -1)
    logits, confidence = network.heads(states, previous, embedding)
    is_right = (logits.argmax(-1) == labels).float()
    sureness = F.binary_cross_entropy_with_logits(confidence.float(), is_right, reduction="none")
    return decayed_loss(logits, labels, exists, decay) + CONFIDENCE_WEIGHT * (sureness * exists).sum() / exists.sum()


def eagle3_loss(
    network: Eagle3,
    data: Prefill,
    *,
    batch: Batch,
    embedding: torch.Tensor,
    taps: tuple[int, ...],
    draft_index: torch.Tensor,
    decay: float,
) -> torch.Tensor:
    """Loss over all slots of whole sequences and all unrolls; tokens outside the draft vocabulary are left out.

    Args:
        network: The drafter.
        data: Prefilled answers.
        batch: Only its rows are used.
        embedding: The target's table.
        taps: Canonical ids of the three taps.
        draft_index: [vocab] index in the draft vocabulary, or -100.
        decay: Weight of unroll s is ``exp(-s / decay)``.
    """
    ids = data.ids[batch.rows]
    start, end = data.prompt_tokens[batch.rows][:, None], data.total_tokens[batch.rows][:, None]
    slot = torch.arange(ids.shape[1] - 2, device=ids.device)
    labels = draft_index[ids[:, 2:]]
    total = torch.zeros((), device=ids.device)
    weights = torch.zeros((), device=ids.device)
    for unroll, states in enumerate(network(embedding, data.taps(taps, batch.rows), ids, network.shape.block)):
        logits = network.lm_head(states[:, :-1]).float()
        counts = (slot + 1 - unroll >= start) & (slot + 2 < end)
        wanted = labels.masked_fill(~counts, -100)
        weight = math.exp(-unroll / decay)
        total = total + weight * F.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="sum"
        )
        weights = weights + weight * (wanted != -100).sum()
    return total / weights.clamp(min=1e-6)
