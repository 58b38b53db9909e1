"""Training of drafters on prefilled answers: batches of random anchors, the early checkpoint, and going on after an
interruption.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from deploy.demo.train.answers import Prefill
from deploy.demo.train.fit import FitRecord, Log, Step, fit
from deploy.demo.train.losses import Batch
from deploy.demo.train.settings import Budget, Sampling
from torch import nn

Network = TypeVar("Network", bound=nn.Module)
WEIGHT_DECAY = 0.01
SAVE_EVERY_S = 60.0
"""What an interruption can cost, against writing three times the network's size each time."""


@dataclass
class Snapshot:
    """State of a training that is not finished: weights, optimizer state (float32, keyed by parameter name) and
    step.
    """

    step: int
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


class AnchorSampler:
    """Draws sequences in proportion to their anchors, then anchors uniformly: every response position but the last is
    equally likely.
    """

    def __init__(self, data: Prefill, sampling: Sampling) -> None:
        self._data = data
        self._spans = (data.total_tokens - data.prompt_tokens - 1).clamp(min=0)
        device = data.ids.device
        self.batch = Batch(
            torch.zeros(sampling.sequences, dtype=torch.long, device=device),
            torch.ones(sampling.sequences, sampling.anchors, dtype=torch.long, device=device),
        )

    def refill(self, _progress: float) -> None:
        """Draw the next batch into the buffers."""
        rows, anchors = self.batch.rows, self.batch.anchors
        rows.copy_(torch.multinomial(self._spans.float(), len(rows), replacement=True))
        span = self._spans[rows][:, None]
        offset = (torch.rand(anchors.shape, device=rows.device) * span).long()
        anchors.copy_(self._data.prompt_tokens[rows][:, None] + torch.minimum(offset, span - 1))


def snapshot(network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Snapshot:
    """Copy weights and AdamW moments to the CPU, named."""
    state = {
        name: {key: value.detach().cpu().clone() for key, value in optimizer.state[p].items()}
        for name, p in network.named_parameters()
        if p in optimizer.state
    }
    return Snapshot(step, {k: v.detach().cpu().clone() for k, v in network.state_dict().items()}, state)


def save_progress(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Store what a training needs to go on; a write that is cut leaves the one before."""
    partial = path.with_suffix(".partial")
    torch.save({"weights": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
    partial.replace(path)


def train_drafter(
    network: nn.Module,
    loss_of: Callable[[Batch], torch.Tensor],
    data: Prefill,
    *,
    sampling: Sampling,
    budget: Budget,
    name: str,
    log: Log,
    early_ratio: float | None = None,
    progress_file: Path | None = None,
) -> tuple[FitRecord, Snapshot | None]:
    """Train a network in place.

    Args:
        network: On the device of the data, float32 weights.
        loss_of: Loss of a batch, under autocast on a GPU.
        data: Prefilled answers.
        sampling: Batch sizes and learning rate.
        budget: When to stop.
        name: For progress lines.
        log: Takes one line.
        early_ratio: Progress at which a snapshot is taken.
        progress_file: Where the state is kept every `SAVE_EVERY_S` seconds, and taken up from if it is there. Only
            budgets in steps can be continued; the batches after an interruption are drawn anew.

    Returns:
        The record, and the snapshot if one was asked for.
    """
    on_gpu = data.ids.is_cuda
    network.train()
    sampler = AnchorSampler(data, sampling)
    parameters = list(network.parameters())

    def loss() -> torch.Tensor:
        with torch.autocast(data.ids.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            return loss_of(sampler.batch)

    early: list[Snapshot] = []
    saved_at = time.monotonic()

    def watch(progress: float, step: int, optimizer: torch.optim.Optimizer) -> None:
        nonlocal saved_at
        if early_ratio is not None and not early and progress >= early_ratio:
            early.append(snapshot(network, optimizer, step))
        if progress_file is not None and time.monotonic() - saved_at >= SAVE_EVERY_S:
            save_progress(progress_file, network, optimizer, step)
            saved_at = time.monotonic()

    def resume(optimizer: torch.optim.Optimizer) -> int:
        if progress_file is None or not progress_file.exists():
            return 0
        state = torch.load(progress_file, weights_only=True)
        network.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        log(f"  {name}: taken up at step {state['step']}")
        return int(state["step"])

    sampler.refill(0.0)
    step = Step(loss, parameters, graph=on_gpu)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    record = fit(
        step,
        sampler.refill,
        groups,
        rate=sampling.rate,
        budget=budget,
        name=name,
        log=log,
        on_progress=watch,
        resume=resume,
    )
    for parameter in parameters:
        parameter.grad = None
    network.eval()
    return record, early[0] if early else None


def rounded(network: Network, dtype: torch.dtype) -> Network:
    """A copy in the dtype of inference."""
    return copy.deepcopy(network).to(dtype).eval()
