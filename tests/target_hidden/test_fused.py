"""Named faster paths: the same formulas, their own fingerprint, a measured deviation; and never by default."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from kit.engine import Checkpoint, Start, job, random_ids, results
from tauscope_target import fused
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.loading import LoadingPlan, load
from tauscope_target.modes import ModeRequest
from tauscope_target.selftests import relative_difference
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_wire.errors import MismatchError, RequestError

CPU = torch.device("cpu")


def as_it_is(function: Any) -> Any:
    return function


@pytest.fixture
def own_convolution() -> Any:
    """The option binds a function in transformers' module; a test gives it back."""
    before = qwen.causal_conv1d_fn
    yield
    qwen.causal_conv1d_fn = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_formulas_are_those_of_transformers(dtype: torch.dtype) -> None:
    """Uncompiled they differ by the order of sums at most: exact in BF16 after rounding, but for single roundings."""
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    norm, gated = qwen.Qwen3_5RMSNorm(32).to(dtype), qwen.Qwen3_5RMSNormGated(32).to(dtype)
    norm.weight.data.copy_(draw(32))
    gated.weight.data.copy_(draw(32))
    x, gate = draw(2, 9, 32), draw(2, 9, 32)
    exact = {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(fused.zero_centred_norm(x, norm.weight, norm.eps), norm(x), **exact)
    torch.testing.assert_close(fused.gated_norm(x, gate, gated.weight, gated.variance_epsilon), gated(x, gate), **exact)
    weight = draw(32, 4)
    ours = fused.convolution_by_shifts(x.transpose(1, 2), weight)
    theirs = qwen.causal_conv1d_fn(x.transpose(1, 2), weight, activation="silu")
    # one rounding of the convolution may fall to the other side: 2**-8 of a value in BF16
    bound = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)


def test_a_fused_model_gives_the_same_states_up_to_the_order_of_sums(
    checkpoint: Checkpoint, start: Start, own_convolution: None
) -> None:
    from tauscope_target.engine import EngineParts, TorchEngine
    from tauscope_target.forward import DecoderRunner
    from tauscope_target.layer_runs import ResidentWeights

    ids = random_ids(75)
    (expected,) = results(start("hybrid"), [job(ids, (0, 3, 7), final_norm=True)])
    anatomy = load(open_checkpoint(checkpoint("hybrid")), LoadingPlan(torch.float32, CPU))
    calls: dict[str, int] = {}

    def counted(function: Any) -> Any:
        def run(*args: Any) -> Any:
            calls[function.__name__] = calls.get(function.__name__, 0) + 1
            return function(*args)

        return run

    fused.apply_options(anatomy, ["fused"], compiled=counted)
    runner = DecoderRunner(anatomy, weights=ResidentWeights(), device=CPU, chunk_tokens=2048)
    engine = TorchEngine(EngineParts(runner, start("hybrid").parts.head, CPU))
    (found,) = results(engine, [job(ids, (0, 3, 7), final_norm=True)])
    # two norms a layer, two more in each of the two attention layers, the final one
    assert calls == {"zero_centred_norm": 16 + 4 + 1, "gated_norm": 6, "silu_product": 8, "convolution_by_shifts": 6}
    assert relative_difference(found.states, expected.states) < 1e-4


def test_an_option_that_does_not_exist_is_refused(checkpoint: Checkpoint) -> None:
    anatomy = load(open_checkpoint(checkpoint("hybrid")), LoadingPlan(torch.float32, CPU))
    with pytest.raises(RequestError, match="the options are fused, fla-convolution"):
        fused.apply_options(anatomy, ["faster"])


def test_an_option_that_would_change_nothing_is_refused(checkpoint: Checkpoint) -> None:
    anatomy = load(open_checkpoint(checkpoint("llama")), LoadingPlan(torch.float32, CPU))
    with pytest.raises(MismatchError, match="changes nothing"):
        fused.apply_options(anatomy, ["fused"], compiled=as_it_is)


def test_nothing_is_fused_by_default(start: Start) -> None:
    numerics = start("hybrid").facts.numerics
    assert numerics.options == []
    assert numerics.convolution == "torch"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own compiler uses it
def test_the_compiled_option_enters_the_fingerprint_with_its_deviation(
    checkpoint: Checkpoint, own_convolution: None, tmp_path: Path
) -> None:
    settings = EngineSettings(
        checkpoint("hybrid"),
        "cpu",
        allow_reference_kernels=True,
        options=("fused",),
        mode=ModeRequest(weights="streamed"),
    )
    facts = start_engine(settings).facts
    assert facts.numerics.options == ["fused"]
    assert facts.numerics.convolution == "fused"
    assert facts.numerics.linear_attention == "torch-reference"
    assert {test.status for test in facts.self_tests} <= {"passed", "not_run"}
    assert facts.noise_floor is not None
    assert max(facts.noise_floor["options"]) < 1e-4
