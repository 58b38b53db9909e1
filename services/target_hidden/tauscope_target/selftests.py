"""What the service proves about itself before it is ready. Results are shown in `/info` as they are, good or bad.

Tolerances: float32 on a CPU differs between batch shapes and chunkings only by the order of sums, well under 1e-4 of a
row's size; BF16 keeps 8 bits, and differences grow over layers, so 5e-2 separates rounding from wrong rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import HiddenJob, HiddenResult, LogitsSpec
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.messages import SelfTest

FLOAT32_TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 5e-2
LENGTHS = (97, 33, 70)
"""Three prompts, none a multiple of the 64 tokens that gated delta kernels work on at once."""
ARGMAX_SHARE = 0.98
"""Share of positions whose argmax must agree in BF16, where near-ties flip; float32 must agree everywhere."""


@dataclass(frozen=True)
class SelfTestPlan:
    """What to run with.

    Attributes:
        layers: planes that are compared.
        dtype: the most exact wire dtype of this service.
        seed: of the random prompts.
    """

    layers: tuple[int, ...]
    dtype: WireDtype
    seed: int = 0


def run_self_tests(engine: TorchEngine, plan: SelfTestPlan) -> list[SelfTest]:
    """Run all self-tests; a test that raises is `failed`, not an exception."""
    tests: Sequence[tuple[str, Callable[[TorchEngine, SelfTestPlan], SelfTest]]] = (
        ("argmax_from_last_plane", _argmax),
        ("batch_against_single", _batch),
        ("chunked_against_unchunked", _chunked),
        ("rows_finite_and_not_zero", _rows),
    )
    results = []
    for name, test in tests:
        try:
            results.append(test(engine, plan))
        except Exception as error:
            results.append(SelfTest(name=name, status="failed", detail=f"{type(error).__name__}: {error}"))
    return results


def relative_difference(ours: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Largest norm of a row's difference over the row's norm; arrays [..., rows, hidden]."""
    left, right = ours.astype(np.float32), reference.astype(np.float32)
    norms = np.linalg.norm(right, axis=-1)
    return float(np.max(np.linalg.norm(left - right, axis=-1) / np.maximum(norms, 1e-30), initial=0.0))


def tolerance(plan: SelfTestPlan) -> float:
    """Largest relative difference that rounding explains."""
    return FLOAT32_TOLERANCE if plan.dtype == "float32" else BFLOAT16_TOLERANCE


def prompts(engine: TorchEngine, plan: SelfTestPlan) -> list[npt.NDArray[np.int32]]:
    """Random prompts of `LENGTHS`, the same at every start."""
    random = np.random.default_rng(plan.seed)
    vocab = int(engine.parts.anatomy.config.vocab_size)
    return [random.integers(0, vocab, length, dtype=np.int32) for length in LENGTHS]


def jobs_for(engine: TorchEngine, plan: SelfTestPlan) -> list[HiddenJob]:
    """One job per prompt, all planes, all positions."""
    return [HiddenJob(ids, plan.layers, False, 0, len(ids), plan.dtype) for ids in prompts(engine, plan)]


def states_of(engine: TorchEngine, jobs: Sequence[HiddenJob]) -> list[npt.NDArray[Any]]:
    """States of each job from one pass; a job's failure is raised."""
    states = []
    for outcome in engine.execute(jobs):
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, HiddenResult)
        states.append(outcome.states)
    return states


def _batch(engine: TorchEngine, plan: SelfTestPlan) -> SelfTest:
    """A shuffled batch of different lengths equals each prompt alone; a shifted or swapped row is far outside."""
    jobs = jobs_for(engine, plan)
    shared = states_of(engine, jobs)
    worst = max(relative_difference(a, states_of(engine, [job])[0]) for a, job in zip(shared, jobs, strict=True))
    return _verdict("batch_against_single", worst, plan, f"{len(jobs)} prompts of {LENGTHS} tokens")


def _chunked(engine: TorchEngine, plan: SelfTestPlan) -> SelfTest:
    """A prompt in chunks that no kernel's block size divides equals the prompt in one piece."""
    runner = engine.parts.runner
    if not runner.anatomy.is_chunkable:
        return SelfTest(
            name="chunked_against_unchunked", status="not_run", detail="this architecture is not run in chunks"
        )
    job = jobs_for(engine, plan)[0]
    before = runner.chunk_tokens
    whole = states_of(engine, [job])[0]
    try:
        runner.chunk_tokens = 40
        pieces = states_of(engine, [job])[0]
    finally:
        runner.chunk_tokens = before
    return _verdict(
        "chunked_against_unchunked", relative_difference(pieces, whole), plan, f"{LENGTHS[0]} tokens in chunks of 40"
    )


def _argmax(engine: TorchEngine, plan: SelfTestPlan) -> SelfTest:
    """Head and final norm on the last plane reproduce the argmax of the model's own forward pass."""
    name = "argmax_from_last_plane"
    anatomy = engine.parts.anatomy
    if engine.parts.head is None:
        return SelfTest(name=name, status="not_run", detail="the head is not loaded")
    if not engine.parts.can_generate:
        return SelfTest(name=name, status="not_run", detail="the whole model is never on the device in this mode")
    ids = prompts(engine, plan)[1]
    job = HiddenJob(ids, (), False, 0, len(ids), plan.dtype, LogitsSpec(0, False))
    (outcome,) = engine.execute([job])
    if isinstance(outcome, BaseException):
        raise outcome
    assert isinstance(outcome, HiddenResult) and outcome.logits is not None
    with torch.inference_mode():
        own = anatomy.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None].to(engine.parts.device)).logits
    share = float(np.mean(own[0].float().argmax(-1).cpu().numpy() == outcome.logits.argmax_ids))
    needed = 1.0 if plan.dtype == "float32" else ARGMAX_SHARE
    return _judged(name, f"{share:.4f} of {len(ids)} positions agree, needed {needed}", is_good=share >= needed)


def _rows(engine: TorchEngine, plan: SelfTestPlan) -> SelfTest:
    """No plane has a row that is zero or not finite (the engine raises); reports the range of row norms."""
    states = states_of(engine, jobs_for(engine, plan))[0].astype(np.float32)
    norms = np.linalg.norm(states, axis=-1)
    detail = f"row norms {norms.min():.3g} to {norms.max():.3g} over {len(plan.layers)} planes"
    healthy = bool(np.isfinite(norms).all() and (norms[1:] > 0).all())
    return _judged("rows_finite_and_not_zero", detail, is_good=healthy)


def _verdict(name: str, worst: float, plan: SelfTestPlan, what: str) -> SelfTest:
    bound = tolerance(plan)
    return _judged(name, f"{what}: largest relative difference {worst:.3g}, bound {bound:g}", is_good=worst <= bound)


def _judged(name: str, detail: str, *, is_good: bool) -> SelfTest:
    status: Literal["passed", "failed"] = "passed" if is_good else "failed"
    return SelfTest(name=name, status=status, detail=detail)
