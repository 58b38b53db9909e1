"""What the service proves about itself before it is ready. Results are shown in `/info` as they are, good or bad.

Rounding and wrong rows must be told apart. In float32 on a CPU, batch shapes and chunkings change the order of sums
only: well under 1e-4 of a row. In BF16 differences grow over the layers and no small bound holds (two correct kernels
differ by 8 % after sixty layers), so there every row must in addition be closer to its own reference than to any other
row's: a shifted, swapped or mixed-up row is not.
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
from tauscope_wire.layers import EMBEDDING
from tauscope_wire.messages import SelfTest

FLOAT32_TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 0.5
"""A row that differs by half its size is wrong whatever it is closest to."""
LENGTHS = (97, 33, 70)
"""Three prompts, none a multiple of the 64 tokens that gated delta kernels work on at once."""
ODD_CHUNK = 40
"""A chunk that no kernel's block size divides."""
NEAR_TIE = {"float32": 1e-5, "bfloat16": 2e-2}
"""Logits closer than this share of the largest may swap: BF16 keeps 8 bits, so the best two are often equal."""


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


def noise_floor(engine: TorchEngine, plan: SelfTestPlan, *, plain: npt.NDArray[Any] | None = None) -> dict[str, Any]:
    """Differences per plane between passes of different shapes over the same prompt: what parity must allow for.

    Args:
        engine: the engine as it will serve.
        plan: what to compare.
        plain: states of the first prompt before named faster paths were switched on, or None.

    Returns:
        `planes`, and per plane `batch` and `chunks`: the largest relative difference of a row when the prompt shares
        its pass, and when it runs in chunks; `options`, the deviation of the named paths; `tokens` of the prompt.
    """
    jobs = jobs_for(engine, plan)
    alone = states_of(engine, jobs[:1])[0]
    shared = states_of(engine, jobs)[0]
    floor: dict[str, Any] = {"planes": list(plan.layers), "tokens": LENGTHS[0]}
    floor["batch"] = [relative_difference(a, b) for a, b in zip(shared, alone, strict=True)]
    if engine.parts.anatomy.is_chunkable:
        pieces = _in_chunks(engine, jobs[0])
        floor["chunks"] = [relative_difference(a, b) for a, b in zip(pieces, alone, strict=True)]
    if plain is not None:
        floor["options"] = [relative_difference(a, b) for a, b in zip(alone, plain, strict=True)]
    return floor


def relative_difference(ours: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Largest norm of a row's difference over the row's norm; arrays [..., rows, hidden]."""
    left, right = ours.astype(np.float32), reference.astype(np.float32)
    norms = np.linalg.norm(right, axis=-1)
    return float(np.max(np.linalg.norm(left - right, axis=-1) / np.maximum(norms, 1e-30), initial=0.0))


def rows_are_their_own(ours: npt.NDArray[Any], reference: npt.NDArray[Any]) -> bool:
    """Whether every row [rows, hidden] is at least as close to the reference row of its index as to any other."""
    left, right = ours.astype(np.float32), reference.astype(np.float32)
    squares = (left**2).sum(-1)[:, None] + (right**2).sum(-1)[None, :] - 2 * left @ right.T
    own = np.diagonal(squares)
    slack = 1e-5 * (right**2).sum(-1)  # equal rows (equal tokens in equal contexts) tie
    return bool((own <= squares.min(axis=1) + slack).all())


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
    """A batch of different lengths equals each prompt alone."""
    jobs = jobs_for(engine, plan)
    pairs = [(shared, states_of(engine, [job])[0]) for shared, job in zip(states_of(engine, jobs), jobs, strict=True)]
    return _compared("batch_against_single", pairs, plan, f"{len(jobs)} prompts of {LENGTHS} tokens")


def _chunked(engine: TorchEngine, plan: SelfTestPlan) -> SelfTest:
    """A prompt in odd chunks equals the prompt in one piece."""
    name = "chunked_against_unchunked"
    if not engine.parts.anatomy.is_chunkable:
        return SelfTest(name=name, status="not_run", detail="this architecture is not run in chunks")
    job = jobs_for(engine, plan)[0]
    pairs = [(_in_chunks(engine, job), states_of(engine, [job])[0])]
    return _compared(name, pairs, plan, f"{LENGTHS[0]} tokens in chunks of {ODD_CHUNK}")


def _in_chunks(engine: TorchEngine, job: HiddenJob) -> npt.NDArray[Any]:
    runner = engine.parts.runner
    before = runner.chunk_tokens
    try:
        runner.chunk_tokens = ODD_CHUNK
        return states_of(engine, [job])[0]
    finally:
        runner.chunk_tokens = before


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
        input_ids = torch.from_numpy(ids.astype(np.int64))[None].to(engine.parts.device)
        own = anatomy.model(input_ids=input_ids).logits[0].float().cpu().numpy()
    chosen = own[np.arange(len(ids)), outcome.logits.argmax_ids]
    best = own.max(axis=-1)
    equal = float(np.mean(own.argmax(-1) == outcome.logits.argmax_ids))
    agree = bool(np.all(best - chosen <= NEAR_TIE[plan.dtype] * np.maximum(np.abs(best), 1)))
    detail = f"{equal:.4f} of {len(ids)} positions equal, the others within a near-tie of {NEAR_TIE[plan.dtype]:g}"
    return _judged(name, detail if agree else f"{equal:.4f} of {len(ids)} positions equal", is_good=agree)


def _rows(engine: TorchEngine, plan: SelfTestPlan) -> SelfTest:
    """No plane has a row that is zero or not finite (the engine raises); reports the range of row norms."""
    states = states_of(engine, jobs_for(engine, plan))[0].astype(np.float32)
    norms = np.linalg.norm(states, axis=-1)
    detail = f"row norms {norms.min():.3g} to {norms.max():.3g} over {len(plan.layers)} planes"
    healthy = bool(np.isfinite(norms).all() and (norms[1:] > 0).all())
    return _judged("rows_finite_and_not_zero", detail, is_good=healthy)


def _compared(
    name: str, pairs: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]], plan: SelfTestPlan, what: str
) -> SelfTest:
    """Judge states [planes, rows, hidden] against their references."""
    worst = max(relative_difference(ours, reference) for ours, reference in pairs)
    own = all(
        rows_are_their_own(plane, expected)
        for ours, reference in pairs
        for layer, plane, expected in zip(plan.layers, ours, reference, strict=True)
        if layer != EMBEDDING
    )
    bound = FLOAT32_TOLERANCE if plan.dtype == "float32" else BFLOAT16_TOLERANCE
    detail = f"{what}: largest relative difference {worst:.3g}, bound {bound:g}"
    return _judged(
        name, detail if own else f"{detail}; a row is closer to another row's reference", is_good=own and worst <= bound
    )


def _judged(name: str, detail: str, *, is_good: bool) -> SelfTest:
    status: Literal["passed", "failed"] = "passed" if is_good else "failed"
    return SelfTest(name=name, status=status, detail=detail)
