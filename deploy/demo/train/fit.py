"""The training loop: one optimizer step as a CUDA graph where there is a GPU, a schedule that ends with its budget,
progress lines.

Models of this size are bound by kernel launches: replaying forward and backward as one graph is several times faster
than eager code. The loss function therefore reads its batch from buffers that the caller refills between replays.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from deploy.demo.train.settings import Budget

Log = Callable[[str], None]
WARMUP_RATIO = 0.03
FINAL_RATE_RATIO = 0.05
GRADIENT_NORM = 1.0
WARMUP_PASSES = 3
"""Passes before capture: Triton compiles, cuBLAS picks workspaces."""


class Step:
    """Forward and backward of ``loss_fn`` into the parameters' ``grad``; captured once, replayed afterwards."""

    def __init__(
        self, loss_fn: Callable[[], torch.Tensor], parameters: list[torch.nn.Parameter], *, graph: bool
    ) -> None:
        self._loss_fn, self._parameters = loss_fn, parameters
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = torch.zeros(())
        if graph:
            self._capture()

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _capture(self) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP_PASSES):
                self._clear()
                self._loss_fn().backward()  # type: ignore[no-untyped-call]
        torch.cuda.current_stream().wait_stream(side)
        self._clear()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss = self._loss_fn()
            self._loss.backward()  # type: ignore[no-untyped-call]

    def __call__(self) -> torch.Tensor:
        """One pass over the current buffers; the loss tensor is overwritten by the next call."""
        if self._graph is not None:
            self._graph.replay()
            return self._loss
        self._clear()
        loss = self._loss_fn()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


@dataclass
class FitRecord:
    """What one training did: steps, seconds, and the loss now and then; ``taken_up_at`` is the step that it began with
    after an interruption, which the seconds begin with too.
    """

    steps: int = 0
    taken_up_at: int = 0
    seconds: float = 0.0
    final_loss: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The record as plain data for the card."""
        return {
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "ms_per_step": round(1e3 * self.seconds / max(1, self.steps - self.taken_up_at), 2),
            "final_loss": round(self.final_loss, 4),
            "curve": self.curve,
            **({"taken_up_at": self.taken_up_at} if self.taken_up_at else {}),
        }


def rate_factor(progress: float) -> float:
    """Learning-rate factor at a progress in 0..1: linear warm-up, then cosine down to `FINAL_RATE_RATIO`."""
    if progress < WARMUP_RATIO:
        return min(1.0, progress / WARMUP_RATIO + 1e-3)
    turn = math.pi * (progress - WARMUP_RATIO) / (1 - WARMUP_RATIO)
    return FINAL_RATE_RATIO + (1 - FINAL_RATE_RATIO) * 0.5 * (1 + math.cos(turn))


def fit(
    step: Step,
    refill: Callable[[float], None],
    groups: list[dict[str, Any]],
    *,
    rate: float,
    budget: Budget,
    name: str,
    log: Log,
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[float, int, torch.optim.Optimizer], None] | None = None,
    resume: Callable[[torch.optim.Optimizer], int] | None = None,
) -> FitRecord:
    """Train until the budget ends.

    Args:
        step: One forward and backward.
        refill: Puts the next batch into the buffers that the step reads; gets the progress in 0..1.
        groups: AdamW parameter groups.
        rate: Peak learning rate.
        budget: When to stop; progress is the larger of the used shares of its limits.
        name: For progress lines.
        log: Takes one line.
        clock: Seconds; a seam for tests.
        on_progress: Called with progress, step and optimizer whenever progress is measured.
        resume: Puts weights and optimizer into the state of an interrupted run and returns its step.
    """
    parameters = [p for group in groups for p in group["params"]]
    on_gpu = parameters[0].is_cuda
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=on_gpu)
    record, start, progress = FitRecord(), clock(), 0.0
    if resume is not None:
        record.steps = record.taken_up_at = resume(optimizer)
    measure_every, report_every = (20, 250) if on_gpu else (1, 10)
    loss = torch.zeros(())
    while True:
        if record.steps % measure_every == 0:
            if on_gpu:
                torch.cuda.synchronize()
            elapsed = clock() - start
            shares = [elapsed / budget.seconds if budget.seconds else 0.0]
            shares.append(record.steps / budget.steps if budget.steps else 0.0)
            progress = min(1.0, max(shares))
            if on_progress is not None:
                on_progress(progress, record.steps, optimizer)
            if progress >= 1.0:
                break
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_factor(progress)
        refill(progress)
        loss = step()
        torch.nn.utils.clip_grad_norm_(parameters, GRADIENT_NORM)
        optimizer.step()
        record.steps += 1
        if record.steps % report_every == 0:
            record.curve.append((record.steps, round(loss.item(), 4)))
            if record.steps % (4 * report_every) == 0:
                log(f"  {name}: step {record.steps}, loss {record.curve[-1][1]:.3f}, {100 * progress:.0f} %")
    record.seconds, record.final_loss = clock() - start, float(loss.detach())
    return record
