"""The default arithmetic in fewer passes over memory: the same bits, or what was there before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from kit.engine import job, random_ids, results
from kit.models import tiny_hybrid
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.device_memory import measure
from tauscope_target.duty import Duty
from tauscope_target.engine import TorchEngine
from tauscope_target.exact import LEAST_ROWS, ExactConvolution, apply_exact, is_sum_known, load_kernels, same_bits
from tauscope_target.kernels import Observation, observing
from tauscope_target.loading import LoadingPlan, load
from tauscope_target.modes import ModeRequest, build, decide
from tauscope_target.sizes import model_sizes
from tauscope_target.skeleton import read_config

CPU = torch.device("cpu")
WIDE = {"hidden_size": 128, "head_dim": 128, "linear_value_head_dim": 128}


class LinkByLink:
    """What the kernels compute, in torch, written from their definition; `wrong` spoils one of them by one rounding."""

    def __init__(self, *, wrong: str = "") -> None:
        self._wrong = wrong
        self.calls: set[str] = set()

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, is_centred: bool) -> torch.Tensor:
        self.calls.add("norm")
        scaled = x.float() * self._rate(x, eps)
        if self._wrong == "norm":
            scaled = scaled.to(torch.bfloat16).float()
        if is_centred:
            return (scaled * (1.0 + weight.float())).to(x.dtype)
        return weight * scaled.to(x.dtype)

    def gated_norm(self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        self.calls.add("gated_norm")
        scaled = weight * (x.float() * self._rate(x, eps)).to(x.dtype)
        gated = F.silu(gate) if self._wrong == "gated_norm" else F.silu(gate.float())
        return (scaled * gated).to(x.dtype)

    def silu_product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        self.calls.add("silu_product")
        if self._wrong == "silu_product":
            return (F.silu(gate.float()) * up.float()).to(gate.dtype)
        return F.silu(gate) * up

    def convolution(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.calls.add("convolution")
        out = torch.zeros(x.shape)
        for tap in range(weight.shape[1]):
            back = weight.shape[1] - 1 - tap
            out[..., back:] += x[..., : x.shape[-1] - back].float() * weight[:, tap, None].float()
        return F.silu(out).to(x.dtype) if self._wrong == "convolution" else F.silu(out.to(x.dtype))

    def _rate(self, x: torch.Tensor, eps: float) -> torch.Tensor:
        return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)


@pytest.fixture
def own_convolution() -> Iterator[None]:
    """The replacement lies in transformers' module; a test gives it back."""
    before = qwen.causal_conv1d_fn
    yield
    qwen.causal_conv1d_fn = before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As small as it can be where every norm has a width whose sums are known."""
    return tiny_hybrid(tmp_path_factory.mktemp("exact") / "hybrid", dtype=torch.bfloat16, **WIDE)


def engine_of(folder: Path, *, device: torch.device = CPU) -> TorchEngine:
    opened = open_checkpoint(folder)
    sizes = model_sizes(opened, read_config(opened).to_dict(), itemsize=2, deepest_layer=None, with_head=True)
    plan = LoadingPlan(dtype=torch.bfloat16, device=device)
    decision = decide(sizes, ModeRequest(), measure(device))
    return TorchEngine(build(lambda chosen: load(opened, chosen), decision, plan=plan, duty=Duty(1.0)))


def states(engine: TorchEngine) -> list[torch.Tensor]:
    wanted = [job(random_ids(length, seed=length), layers=(0, 3, 7)) for length in (5, 70, 131)]
    return [torch.from_numpy(result.states.view("int16")) for result in results(engine, wanted)]


def test_a_cpu_and_float32_keep_the_functions_of_transformers() -> None:
    assert load_kernels(CPU, torch.bfloat16) is None
    assert load_kernels(torch.device("cuda"), torch.float32) is None


def test_without_kernels_nothing_is_replaced(folder: Path) -> None:
    assert apply_exact(engine_of(folder).parts.anatomy, None, device=CPU) == []


def test_every_chain_is_replaced_and_the_states_keep_their_bits(folder: Path, own_convolution: None) -> None:
    engine = engine_of(folder)
    before = states(engine)
    kernels = LinkByLink()
    replaced = apply_exact(engine.parts.anatomy, kernels, device=CPU)
    assert replaced == ["Qwen3_5MLP", "Qwen3_5RMSNorm", "Qwen3_5RMSNormGated", "causal_conv1d_fn"]
    kernels.calls.clear()
    after = states(engine)
    assert kernels.calls == {"norm", "gated_norm", "silu_product", "convolution"}
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("wrong", "missing"),
    [
        ("norm", "Qwen3_5RMSNorm"),
        ("gated_norm", "Qwen3_5RMSNormGated"),
        ("silu_product", "Qwen3_5MLP"),
        ("convolution", "causal_conv1d_fn"),
    ],
)
def test_a_kernel_that_rounds_elsewhere_is_not_used(
    folder: Path, own_convolution: None, wrong: str, missing: str
) -> None:
    engine = engine_of(folder)
    before = states(engine)
    replaced = apply_exact(engine.parts.anatomy, LinkByLink(wrong=wrong), device=CPU)
    assert missing not in replaced
    assert len(replaced) == 3
    assert all(torch.equal(a, b) for a, b in zip(before, states(engine), strict=True))


def test_the_fingerprint_names_the_arithmetic_that_was_proven_equal(folder: Path, own_convolution: None) -> None:
    engine = engine_of(folder)
    apply_exact(engine.parts.anatomy, LinkByLink(), device=CPU)
    observation = Observation()
    with observing(observation):
        states(engine)
    assert observation.convolution_name == "torch"


def test_a_convolution_that_the_kernels_do_not_know_goes_to_the_function_replaced() -> None:
    def replaced(x: torch.Tensor, weight: torch.Tensor, bias: Any = None, **_: Any) -> torch.Tensor:
        return x + 1

    x, weight = torch.ones(1, 4, 6, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.bfloat16)
    ours = ExactConvolution(LinkByLink(), replaced, "cpu").causal_conv1d_exact
    elsewhere = ExactConvolution(LinkByLink(), replaced, "cuda").causal_conv1d_exact
    assert not torch.equal(ours(x, weight, activation="silu"), x + 1)
    assert torch.equal(ours(x, weight, activation=None), x + 1)
    assert torch.equal(ours(x, weight, weight[:, 0], activation="silu"), x + 1)
    assert torch.equal(ours(x.float(), weight.float(), activation="silu"), x.float() + 1)
    assert torch.equal(elsewhere(x, weight, activation="silu"), x + 1)


def test_rows_that_torch_sums_in_another_order_go_to_the_function_replaced(folder: Path, own_convolution: None) -> None:
    engine = engine_of(folder)
    kernels = LinkByLink()
    norm = next(m for m in engine.parts.anatomy.model.modules() if type(m).__name__ == "Qwen3_5RMSNorm")
    own = type(norm).forward
    apply_exact(engine.parts.anatomy, kernels, device=CPU)
    kernels.calls.clear()
    for rows, is_ours in ((LEAST_ROWS - 1, False), (LEAST_ROWS, True)):
        x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
        assert same_bits(norm(x), own(norm, x))
        assert bool(kernels.calls) is is_ours


@pytest.mark.parametrize(
    ("shape", "known"),
    [
        ((16, 128), True),
        ((2, 8, 5120), True),
        ((16, 8064), True),
        ((15, 128), False),
        ((16, 64), False),
        ((16, 192), False),
        ((16, 8192), False),
    ],
)
def test_which_sums_are_known(shape: tuple[int, ...], known: bool) -> None:
    """A warp a row: at least 16 rows, 128 numbers at a time, fewer than 256 a lane (torch's Reduce.cuh)."""
    x = torch.empty(shape, dtype=torch.bfloat16)
    assert is_sum_known(x) is known
    assert not is_sum_known(x.float())
    assert not is_sum_known(torch.empty(shape[::-1], dtype=torch.bfloat16).permute(*range(len(shape) - 1, -1, -1)))


def test_norms_of_other_widths_stay_as_they_are(tmp_path: Path, own_convolution: None) -> None:
    engine = engine_of(tiny_hybrid(tmp_path / "narrow", dtype=torch.bfloat16))
    replaced = apply_exact(engine.parts.anatomy, LinkByLink(), device=CPU)
    assert replaced == ["Qwen3_5MLP", "causal_conv1d_fn"]


def test_equal_numbers_with_other_bits_are_not_the_same() -> None:
    zero = torch.zeros(3, dtype=torch.bfloat16)
    assert same_bits(zero, zero.clone())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.float())


@pytest.mark.gpu
def test_on_a_gpu_all_chains_of_the_hybrid_are_replaced_bit_for_bit(folder: Path, own_convolution: None) -> None:
    device = torch.device("cuda", 0)
    engine = engine_of(folder, device=device)
    before = states(engine)
    kernels = load_kernels(device, torch.bfloat16)
    replaced = apply_exact(engine.parts.anatomy, kernels, device=device)
    assert replaced == ["Qwen3_5MLP", "Qwen3_5RMSNorm", "Qwen3_5RMSNormGated", "causal_conv1d_fn"]
    assert all(torch.equal(a, b) for a, b in zip(before, states(engine), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [128, 256, 384, 1024, 5120, 8064])
@pytest.mark.parametrize("rows", [16, 17, 31, 100, 777, 2048, 5001])
def test_on_a_gpu_norms_sum_in_the_order_of_torch(rows: int, width: int) -> None:
    kernels = load_kernels(torch.device("cuda"), torch.bfloat16)
    assert kernels is not None
    random = torch.Generator("cuda").manual_seed(rows + width)
    powers = torch.randint(-6, 4, (rows, width), generator=random, device="cuda")
    x = (torch.randn(rows, width, generator=random, device="cuda") * torch.exp2(powers)).to(torch.bfloat16)
    weight = torch.randn(width, generator=random, device="cuda").to(torch.bfloat16)
    gate = x.flip(0)
    links = LinkByLink()
    for is_centred in (True, False):
        ours = kernels.norm(x, weight, 1e-6, is_centred=is_centred)
        assert same_bits(ours, links.norm(x, weight, 1e-6, is_centred=is_centred))
    assert same_bits(kernels.gated_norm(x, gate, weight, 1e-6), links.gated_norm(x, gate, weight, 1e-6))


@pytest.mark.gpu
def test_on_a_gpu_norms_of_many_rows_and_of_heads_cut_from_a_wider_projection() -> None:
    kernels = load_kernels(torch.device("cuda"), torch.bfloat16)
    assert kernels is not None
    random = torch.Generator("cuda").manual_seed(0)
    wide = torch.randn(2, 1 << 14, 8 * 256, generator=random, device="cuda").to(torch.bfloat16)
    weight = torch.randn(128, generator=random, device="cuda").to(torch.bfloat16)
    links = LinkByLink()
    for x in (wide.view(-1, 128), wide.view(2, 1 << 14, 8, 256).chunk(2, dim=-1)[0]):
        assert is_sum_known(x)
        assert same_bits(kernels.norm(x, weight, 1e-6, is_centred=True), links.norm(x, weight, 1e-6, is_centred=True))
