"""The fingerprint says what ran, and a hybrid on reference kernels does not start unless it is allowed by name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kit.engine import Checkpoint, Start, job, random_ids
from tauscope_target.arithmetic import choose_dtype
from tauscope_target.engine import TorchEngine
from tauscope_target.kernels import KernelWatch, Observation, observing, pin_configurations, ran_configurations
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError, TauscopeError


def test_a_hybrid_on_reference_kernels_is_refused_and_the_way_out_is_named(checkpoint: Checkpoint) -> None:
    with pytest.raises(MismatchError, match="--allow-reference-kernels") as caught:
        start_engine(EngineSettings(checkpoint("hybrid"), "cpu"))
    assert caught.value.code is ErrorCode.REFERENCE_KERNELS_REFUSED


def test_a_model_without_linear_attention_needs_no_permission(checkpoint: Checkpoint) -> None:
    numerics = start_engine(EngineSettings(checkpoint("llama"), "cpu")).facts.numerics
    assert not numerics.reference_kernels
    assert numerics.linear_attention is None


def test_the_fingerprint_of_a_hybrid_names_the_functions_that_were_entered(start: Start) -> None:
    numerics = start("hybrid").facts.numerics
    assert numerics.linear_attention == "torch-reference"
    assert numerics.convolution == "torch"
    assert numerics.reference_kernels
    assert numerics.attention == "sdpa"
    assert numerics.weights_mode == "cpu"
    assert numerics.fla is None


def test_what_is_noted_is_who_was_called_and_not_what_is_installed() -> None:
    """Functions of the same names in other modules do not count."""
    scope: dict[str, object] = {"__name__": "fla.ops.gated_delta_rule.chunk"}
    exec("def chunk_gated_delta_rule(): pass", scope)
    foreign: dict[str, object] = {"__name__": "somewhere"}
    exec("def torch_chunk_gated_delta_rule(): pass", foreign)
    observation = Observation()
    with observing(observation):
        scope["chunk_gated_delta_rule"]()  # type: ignore[operator]
        foreign["torch_chunk_gated_delta_rule"]()  # type: ignore[operator]
    assert observation.linear_attention_name == "fla"
    assert observation.convolution_name == "unobserved"


def test_attention_is_named_by_the_function_that_ran(checkpoint: Checkpoint) -> None:
    engine = start_engine(EngineSettings(checkpoint("llama"), "cpu"))
    config = engine.parts.anatomy.model.config
    before = config._attn_implementation
    for implementation, name in ((before, "sdpa"), ("eager", "eager")):
        observation = Observation()
        config._attn_implementation = implementation
        with observing(observation):
            outcomes = TorchEngine(engine.parts).execute([job(random_ids(9), (1,))])
        assert not isinstance(outcomes[0], BaseException)
        assert observation.attention_name == name
    (outcome,) = engine.execute([job(random_ids(9), (1,))])
    assert isinstance(outcome, TauscopeError)
    assert outcome.code is ErrorCode.KERNELS_CHANGED  # still eager
    config._attn_implementation = before
    (outcome,) = engine.execute([job(random_ids(9), (1,))])
    assert not isinstance(outcome, BaseException)


def test_both_families_in_one_pass_are_both_named() -> None:
    observation = Observation()
    observation.note("chunk_gated_delta_rule", "fla.ops.gated_delta_rule.chunk")
    observation.note("torch_chunk_gated_delta_rule", "transformers.models.qwen3_5.modeling_qwen3_5")
    assert observation.linear_attention_name == "fla+torch-reference"


class Autotuner:
    """As Triton's: remembers the configuration it launched last."""

    def __init__(self, module: str, name: str, *warps: int) -> None:
        self.base_fn = SimpleNamespace(__module__=module, __name__=name)
        self.configs = [SimpleNamespace(num_warps=n, num_stages=2, kwargs={}) for n in warps]

    def launch(self) -> None:
        self.best_config = f"{self.configs[0].num_warps} warps"


def test_kernels_of_one_name_in_two_modules_are_both_pinned_and_the_one_that_ran_is_named() -> None:
    ran, namesake, twin = (Autotuner(f"fla.{m}", "kernel", 2, 4, 8) for m in "abc")
    modules: dict[str, Any] = {
        "triton": SimpleNamespace(runtime=SimpleNamespace(autotuner=SimpleNamespace(Autotuner=Autotuner))),
        "fla.a": SimpleNamespace(kernel=ran),
        "fla.b": SimpleNamespace(kernel=namesake, alias=ran),
        "fla.c": SimpleNamespace(kernel=twin),
    }
    twin.launch()  # by an engine before this one
    tuners = pin_configurations(modules)
    assert [len(tuner.configs) for tuner in (ran, namesake, twin)] == [1, 1, 1]
    assert ran_configurations(tuners) == {}
    ran.launch()
    assert ran_configurations(tuners) == {"kernel": "4 warps"}
    namesake.launch()
    assert ran_configurations(tuners) == {"fla.a.kernel": "4 warps", "fla.b.kernel": "4 warps"}


def test_a_kernel_rebound_after_start_up_fails_the_next_pass(checkpoint: Checkpoint) -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5

    settings = EngineSettings(checkpoint("hybrid"), "cpu", allow_reference_kernels=True)
    engine = start_engine(settings)
    before = modeling_qwen3_5.torch_chunk_gated_delta_rule
    try:
        modeling_qwen3_5.torch_chunk_gated_delta_rule = lambda *args, **kwargs: before(*args, **kwargs)
        (outcome,) = engine.execute([job(random_ids(9), (1,))])
    finally:
        modeling_qwen3_5.torch_chunk_gated_delta_rule = before
    assert isinstance(outcome, TauscopeError)
    assert outcome.code is ErrorCode.KERNELS_CHANGED
    KernelWatch(engine.parts.anatomy.model).check()


def test_the_noise_floor_is_measured_for_every_plane(start: Start) -> None:
    facts = start("hybrid").facts
    assert facts.noise_floor is not None
    planes = [-1, *range(facts.model.num_layers)]
    assert facts.noise_floor["planes"] == planes
    assert len(facts.noise_floor["batch"]) == len(facts.noise_floor["chunks"]) == len(planes)


def test_start_up_runs_every_self_test(start: Start) -> None:
    tests = {test.name: test.status for test in start("hybrid").facts.self_tests}
    assert tests == dict.fromkeys(
        ["argmax_from_last_plane", "batch_against_single", "chunked_against_unchunked", "rows_finite_and_not_zero"],
        "passed",
    )


@pytest.mark.parametrize(
    ("choice", "stored", "device", "available", "expected"),
    [
        ("auto", torch.bfloat16, "cpu", None, torch.float32),
        ("auto", torch.bfloat16, "cpu", 4_000, torch.float32),
        ("auto", torch.bfloat16, "cpu", 3_999, torch.bfloat16),
        ("auto", torch.float32, "cpu", 1, torch.float32),
        ("bfloat16", torch.float32, "cpu", None, torch.bfloat16),
        ("auto", torch.bfloat16, "cuda", 1, torch.bfloat16),
        ("auto", torch.float32, "cuda", None, torch.float32),
    ],
)
def test_a_cpu_computes_in_float32_unless_it_does_not_fit(
    choice: str, stored: torch.dtype, device: str, available: int | None, expected: torch.dtype
) -> None:
    chosen = choose_dtype(choice, stored, device=torch.device(device), num_parameters=1000, available_bytes=available)  # type: ignore[arg-type]
    assert chosen is expected


def test_another_dtype_on_a_gpu_is_refused() -> None:
    with pytest.raises(RequestError, match="--compute-dtype float32"):
        choose_dtype("float32", torch.bfloat16, device=torch.device("cuda"), num_parameters=1, available_bytes=None)


def test_an_engine_without_facts_says_it_is_starting(start: Start) -> None:
    with pytest.raises(TauscopeError) as caught:
        _ = TorchEngine(start("llama").parts).facts
    assert caught.value.code is ErrorCode.NOT_READY
