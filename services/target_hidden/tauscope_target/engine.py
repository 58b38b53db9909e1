"""The compute side: a loaded model that answers jobs in passes. Owned by one thread; knows nothing of HTTP.

`cli` joins it to `app`; the two never import each other.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tauscope_target.anatomy import Anatomy
from tauscope_target.capture import Capture
from tauscope_target.device_memory import current
from tauscope_target.forward import DecoderRunner
from tauscope_target.generation import Generator
from tauscope_target.jobs import GenerateJob, GenerateResult, HiddenJob, HiddenResult, Job, Result, TargetFacts
from tauscope_target.kernels import KernelWatch
from tauscope_target.logits import HeadBlocks
from tauscope_wire.errors import DeadlineError, ErrorCode, MismatchError, RequestError, TauscopeError, UnavailableError

OUT_OF_MEMORY_RETRY_S = 5.0


def is_memory_refused(error: BaseException) -> bool:
    """Whether the device refused memory: libraries below torch's allocator report it as a plain RuntimeError."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "ALLOC_FAILED" in text or "out of memory" in text


@dataclass(frozen=True, eq=False)
class EngineParts:
    """What an engine runs with.

    Attributes:
        runner: runs the decoder of the loaded model.
        head: the output projection, or None when it is not loaded.
        device: where activations live.
        can_generate: whether `GenerateJob` is served.
    """

    runner: DecoderRunner
    head: HeadBlocks | None
    device: torch.device
    can_generate: bool = True

    @property
    def anatomy(self) -> Anatomy:
        """The model's parts."""
        return self.runner.anatomy


class TorchEngine:
    """Executes passes.

    Args:
        parts: the loaded model.
        facts: what `/info` shows, fingerprint and self-tests included; None while the engine still proves itself.
        watch: compares kernels with the observed ones before every pass.
        clock: seconds, for `timing_ms`.
    """

    def __init__(
        self,
        parts: EngineParts,
        *,
        facts: TargetFacts | None = None,
        watch: KernelWatch | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.parts = parts
        self._facts = facts
        self._watch = watch
        self._clock = clock

    @property
    def facts(self) -> TargetFacts:
        """What the HTTP side must know."""
        if self._facts is None:
            raise UnavailableError("the service is still starting", ErrorCode.NOT_READY)
        return self._facts

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Those that hold weights or activations."""
        held = (weight.device for weight in self.parts.anatomy.model.parameters())
        return tuple(dict.fromkeys([self.parts.device, *held]))

    def execute(self, jobs: Sequence[Job]) -> Sequence[Result | BaseException]:
        """Run one pass of hidden-state jobs together, then generations one by one.

        Args:
            jobs: any mix; hidden-state jobs share one right-padded batch.

        Returns:
            One result or exception per job, in order. A job that is wrong does not disturb the others.
        """
        answers: dict[int, Result | BaseException] = {}
        together: list[tuple[int, HiddenJob]] = []
        for index, job in enumerate(jobs):
            problem = self._problem(job)
            if problem is not None:
                answers[index] = problem
            elif isinstance(job, HiddenJob):
                together.append((index, job))
        with torch.inference_mode(), current(self.parts.device):
            if together:
                indices, hidden_jobs = zip(*together, strict=True)
                answers.update(zip(indices, self._guarded(hidden_jobs), strict=True))
            for index, job in enumerate(jobs):
                if index not in answers and isinstance(job, GenerateJob):
                    answers[index] = self._generate(job)
        return [answers[index] for index in range(len(jobs))]

    def _guarded(self, jobs: Sequence[HiddenJob]) -> Sequence[HiddenResult | BaseException]:
        """One pass; being refused memory fails its jobs, not the service."""
        try:
            if self._watch is not None:
                self._watch.check()
            return self._hidden(jobs)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_memory_refused(error):
                raise
            refused = UnavailableError(
                f"the device refused memory for a pass of {len(jobs)} x {max(j.stop for j in jobs)} tokens; "
                "try again, or ask for a shorter prompt",
                ErrorCode.OUT_OF_MEMORY,
                retry_after_s=OUT_OF_MEMORY_RETRY_S,
            )
        except TauscopeError as error:
            return [error] * len(jobs)
        torch.cuda.empty_cache()  # outside the handler, whose traceback keeps the pass's tensors alive
        return [refused] * len(jobs)

    def _hidden(self, jobs: Sequence[HiddenJob]) -> Sequence[HiddenResult | BaseException]:
        begun = self._clock()
        parts = self.parts
        capture = Capture(jobs, anatomy=parts.anatomy, head=parts.head, device=parts.device)
        parts.runner.run(jobs, capture)
        outcomes = capture.results()
        timing = {"pass": (self._clock() - begun) * 1e3}
        tokens = sum(job.stop for job in jobs)
        return [
            outcome
            if isinstance(outcome, BaseException)
            else HiddenResult(outcome[0], outcome[1].summary() if outcome[1] is not None else None, timing, tokens)
            for outcome in outcomes
        ]

    def _generate(self, job: GenerateJob) -> GenerateResult | BaseException:
        assert self.parts.head is not None
        try:
            if self._watch is not None:
                self._watch.check()
            return Generator(self.parts.runner, self.parts.head, device=self.parts.device).run(job)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_memory_refused(error):
                raise
            return UnavailableError(
                "the device refused memory for a generation; try again, or ask for fewer tokens",
                ErrorCode.OUT_OF_MEMORY,
                retry_after_s=OUT_OF_MEMORY_RETRY_S,
            )
        except TauscopeError as error:
            return error

    def _problem(self, job: Job) -> TauscopeError | None:
        """What must never reach the device: an id outside the embedding kills a CUDA context for good."""
        if job.is_cancelled():
            return DeadlineError("the caller is gone", ErrorCode.CANCELLED)
        anatomy, ids = self.parts.anatomy, np.asarray(job.token_ids)
        vocab = int(anatomy.config.vocab_size)
        if len(ids) == 0:
            return RequestError("token_ids is empty; give at least one token", ErrorCode.EMPTY_PROMPT)
        if int(ids.min()) < 0 or int(ids.max()) >= vocab:
            return RequestError(f"token ids must lie in 0..{vocab - 1}", ErrorCode.TOKEN_OUT_OF_RANGE)
        if isinstance(job, GenerateJob):
            if self.parts.head is None or not self.parts.can_generate:
                return MismatchError("this service does not generate; see mode_cannot in /info", ErrorCode.MODE_CANNOT)
            return None
        if not 0 <= job.start < job.stop <= len(ids):
            return RequestError(
                f"positions [{job.start}, {job.stop}) of {len(ids)} tokens", ErrorCode.POSITION_OUT_OF_RANGE
            )
        if (job.logits is not None or job.final_norm) and self.parts.head is None:
            return MismatchError("final norm and head are not loaded; see mode_cannot in /info", ErrorCode.MODE_CANNOT)
        top = len(anatomy.layers) - 1
        if any(not -1 <= layer <= top for layer in job.layers):
            return RequestError(f"layers {job.layers}: loaded are -1..{top}", ErrorCode.LAYER_OUT_OF_RANGE)
        return None
