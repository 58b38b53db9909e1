"""Training of drafters on prefilled answers: batches of random anchors, one loss a family, and the early checkpoint."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from deploy.demo.train.answers import Prefill
from deploy.demo.train.fit import FitRecord, Log, Step, fit
from deploy.demo.train.networks.dflash import DFlash
from deploy.demo.train.networks.dspark import DSpark
from deploy.demo.train.networks.eagle3 import Eagle3
from deploy.demo.train.settings import Budget, Plan
from torch import nn

Network = TypeVar("Network", bound=nn.Module)
WEIGHT_DECAY = 0.01


@dataclass
class Snapshot:
    """State of a training that is not finished: weights, optimizer state (float32, keyed by parameter name) and
    step.
    """

    step: int
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


@dataclass
class Batch:
    """Buffers that the captured step reads: rows of the prefill [B] and anchor positions [B, A]."""

    rows: torch.Tensor
    anchors: torch.Tensor


class AnchorSampler:
    """Draws sequences in proportion to their anchors, then anchors uniformly: every response position but the last is
    equally likely.
    """

    def __init__(self, data: Prefill, plan: Plan) -> None:
        self._data = data
        self._spans = (data.total_tokens - data.prompt_tokens - 1).clamp(min=0)
        device = data.ids.device
        self.batch = Batch(
            torch.zeros(plan.sequences_per_step, dtype=torch.long, device=device),
            torch.ones(plan.sequences_per_step, plan.anchors_per_sequence, dtype=torch.long, device=device),
        )

    def refill(self, _progress: float) -> None:
        """Draw the next batch into the buffers."""
        rows, anchors = self.batch.rows, self.batch.anchors
        rows.copy_(torch.multinomial(self._spans.float(), len(rows), replacement=True))
        span = self._spans[rows][:, None]
        offset = (torch.rand(anchors.shape, device=rows.device) * span).long()
        anchors.copy_(self._data.prompt_tokens[rows][:, None] + torch.minimum(offset, span - 1))


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
) -> torch.Tensor:
    """Loss of the fill-in layout: rows 1..S-1 predict their own positions."""
    ids = data.ids[batch.rows]
    states = network(embedding, data.taps(taps, batch.rows), ids, batch.anchors)
    labels, exists = block_labels(ids, data.total_tokens[batch.rows], batch.anchors, network.shape.block - 1)
    return decayed_loss(F.linear(states[:, :, 1:], embedding), labels, exists, decay)


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


def snapshot(network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Snapshot:
    """Copy weights and AdamW moments to the CPU, named."""
    state = {
        name: {key: value.detach().cpu().clone() for key, value in optimizer.state[p].items()}
        for name, p in network.named_parameters()
        if p in optimizer.state
    }
    return Snapshot(step, {k: v.detach().cpu().clone() for k, v in network.state_dict().items()}, state)


def train_drafter(
    network: nn.Module,
    loss_of: Callable[[Batch], torch.Tensor],
    data: Prefill,
    *,
    plan: Plan,
    budget: Budget,
    name: str,
    log: Log,
    early_ratio: float | None = None,
) -> tuple[FitRecord, Snapshot | None]:
    """Train a network in place.

    Args:
        network: On the device of the data, float32 weights.
        loss_of: Loss of a batch, under autocast on a GPU.
        data: Prefilled answers.
        plan: Batch sizes and learning rate.
        budget: When to stop.
        name: For progress lines.
        log: Takes one line.
        early_ratio: Progress at which a snapshot is taken.

    Returns:
        The record, and the snapshot if one was asked for.
    """
    on_gpu = data.ids.is_cuda
    network.train()
    sampler = AnchorSampler(data, plan)
    parameters = list(network.parameters())

    def loss() -> torch.Tensor:
        with torch.autocast(data.ids.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            return loss_of(sampler.batch)

    early: list[Snapshot] = []

    def watch(progress: float, step: int, optimizer: torch.optim.Optimizer) -> None:
        if early_ratio is not None and not early and progress >= early_ratio:
            early.append(snapshot(network, optimizer, step))

    sampler.refill(0.0)
    step = Step(loss, parameters, graph=on_gpu)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    record = fit(
        step, sampler.refill, groups, rate=plan.drafter_rate, budget=budget, name=name, log=log, on_progress=watch
    )
    for parameter in parameters:
        parameter.grad = None
    network.eval()
    return record, early[0] if early else None


def rounded(network: Network, dtype: torch.dtype) -> Network:
    """A copy in the dtype of inference."""
    return copy.deepcopy(network).to(dtype).eval()
