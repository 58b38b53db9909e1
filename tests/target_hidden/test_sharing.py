"""Requests that share a pass: each gets its own rows, whatever else is in it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.engine import Start, job, random_ids, results
from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import HiddenJob, HiddenResult
from tauscope_target.selftests import SelfTestPlan, relative_difference, run_self_tests
from tauscope_wire.errors import ErrorCode, TauscopeError

FLOAT32_BOUND = 2e-5
"""Largest relative difference of a row: another batch shape changes the order of sums in matrix products."""


def alone(engine: TorchEngine, one: HiddenJob) -> np.ndarray:
    return results(engine, [one])[0].states


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_a_shuffled_batch_of_random_lengths_equals_one_at_a_time(start: Start, kind: str) -> None:
    engine = start(kind)
    lengths = [65, 1, 33, 128, 7, 64, 90]
    jobs = [job(random_ids(n, seed=n), (-1, 2, 5), final_norm=True) for n in lengths]
    shared = results(engine, jobs)
    for one, found in zip(jobs, shared, strict=True):
        assert relative_difference(found.states, alone(engine, one)) < FLOAT32_BOUND


def test_a_prefix_its_continuation_and_another_prompt_in_one_pass_equal_cold_runs(start: Start) -> None:
    engine = start("hybrid")
    a, b = random_ids(40, seed=1), random_ids(50, seed=2)
    jobs = [job(ids, (3, 6)) for ids in (a, np.concatenate([a, random_ids(30, seed=3)]), b)]
    shared = results(engine, jobs)
    for one, found in zip(jobs, shared, strict=True):
        assert relative_difference(found.states, alone(engine, one)) < FLOAT32_BOUND
    assert relative_difference(shared[1].states[:, :40], shared[0].states) < FLOAT32_BOUND


def test_what_stands_in_the_padding_cannot_matter(start: Start) -> None:
    """Bit for bit: the short request is computed beside long ones whose ids, and so whose rows, differ."""
    engine = start("hybrid")
    short = random_ids(21, seed=4)
    first = results(engine, [job(short, (7,)), job(random_ids(80, seed=5), (7,))])[0]
    second = results(engine, [job(short, (7,)), job(random_ids(80, seed=6), (7,))])[0]
    np.testing.assert_array_equal(first.states, second.states)


def test_requests_of_different_depth_layers_and_dtype_share_a_pass(start: Start) -> None:
    engine = start("llama")
    jobs = [
        job(random_ids(12, seed=1), (0,), dtype="bfloat16"),
        job(random_ids(30, seed=2), (5, 1)),
        job(random_ids(5, seed=3), (), final_norm=True, start=4, stop=5),
    ]
    shared = results(engine, jobs)
    assert [found.states.shape for found in shared] == [(1, 12, 64), (2, 30, 64), (1, 1, 64)]
    for one, found in zip(jobs, shared, strict=True):
        bound = 1e-2 if one.dtype == "bfloat16" else FLOAT32_BOUND  # one BF16 rounding is 2**-9 of a value
        assert relative_difference(found.states, alone(engine, one)) < bound


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_any_mix_of_lengths_repeats_and_cancellations_gives_every_caller_its_own_rows(
    start: Start, mix: list[tuple[int, int, bool]]
) -> None:
    engine = start("hybrid")
    jobs = [
        job(random_ids(length, seed=seed), (1, 4), is_cancelled=(lambda: True) if is_gone else (lambda: False))
        for length, seed, is_gone in mix
    ]
    for one, (length, seed, is_gone), outcome in zip(jobs, mix, engine.execute(jobs), strict=True):
        if is_gone:
            assert isinstance(outcome, TauscopeError)
            assert outcome.code is ErrorCode.CANCELLED
        else:
            assert isinstance(outcome, HiddenResult)
            expected = alone(engine, job(random_ids(length, seed=seed), one.layers))
            assert relative_difference(outcome.states, expected) < FLOAT32_BOUND


@pytest.mark.parametrize("fault", ["rows swapped", "rows shifted", "layers swapped"])
def test_planted_faults_are_caught_by_the_start_up_self_tests(start: Start, fault: str) -> None:
    engine = start("llama")
    layer = engine.parts.anatomy.layers[2].layer

    def plant(module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        if fault == "rows swapped":
            return output.flip(0)
        if fault == "rows shifted":
            return output.roll(1, dims=1) if output.shape[0] > 1 else output
        return output * 2 if output.shape[0] > 1 else output  # another layer's output in a batch

    plan = SelfTestPlan(layers=(-1, 2, 5), dtype="float32")
    assert {test.status for test in run_self_tests(engine, plan)} == {"passed"}
    handle = layer.register_forward_hook(plant)
    try:
        tests = {test.name: test.status for test in run_self_tests(engine, plan)}
    finally:
        handle.remove()
    assert tests["batch_against_single"] == "failed"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (float("nan"), ErrorCode.NON_FINITE_STATES),
        (float("inf"), ErrorCode.NON_FINITE_STATES),
        (0.0, ErrorCode.ZERO_STATES),
    ],
)
def test_a_bad_row_fails_its_own_request_and_no_other(start: Start, value: float, code: ErrorCode) -> None:
    engine = start("llama")

    def spoil(module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        spoiled = output.clone()
        spoiled[1, 3] = value
        return spoiled

    handle = engine.parts.anatomy.layers[5].layer.register_forward_hook(spoil)
    try:
        good, bad, unasked = engine.execute(
            [job(random_ids(9), (5,)), job(random_ids(8), (5,)), job(random_ids(8), (4,))]
        )
    finally:
        handle.remove()
    assert isinstance(bad, TauscopeError)
    assert bad.code is code
    assert isinstance(good, HiddenResult)
    assert isinstance(unasked, HiddenResult)


def test_a_bad_row_behind_a_request_is_not_its_own(start: Start) -> None:
    """Padding and unasked rows are not looked at."""
    engine = start("llama")

    def spoil(module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        spoiled = output.clone()
        spoiled[0, 8:] = float("nan")
        return spoiled

    handle = engine.parts.anatomy.layers[2].layer.register_forward_hook(spoil)
    try:
        short, _ = engine.execute([job(random_ids(8), (2,)), job(random_ids(12), (2,))])
    finally:
        handle.remove()
    assert isinstance(short, HiddenResult)
