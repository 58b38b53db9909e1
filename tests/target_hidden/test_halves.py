"""Halves of layers, the ring of cells and residual streams in host memory: always the bits of resident layers."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from kit.engine import Checkpoint, job, random_ids, results
from kit.models import DENSE_FIELDS, MIXTURE_FIELDS, randomise, save
from tauscope_target.anatomy import Anatomy, dissect
from tauscope_target.arena import REGION_ALIGNMENT
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.duty import Duty
from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import HiddenJob
from tauscope_target.layer_parts import mlp_parts, pieces_of
from tauscope_target.loading import LoadingPlan, load
from tauscope_target.memory import ONE_LAYER, SPARE_MATRIX, TWO_MLPS, WHOLE_LAYERS, Budget, RingShape
from tauscope_target.modes import ModeDecision, build
from tauscope_target.residual import chunk_bounds
from tauscope_target.ring import StreamedWeights
from tauscope_target.selftests import FLOAT32_TOLERANCE, relative_difference
from tauscope_target.sizes import sizes_of_shapes
from tauscope_target.skeleton import build_skeleton
from tauscope_target.streaming import StreamPlacement
from tauscope_wire.errors import DeadlineError, UnavailableError

CPU = torch.device("cpu")
Make = Callable[[str, RingShape | None], TorchEngine]


@pytest.fixture(scope="module")
def folders(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def gemma() -> Path:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Gemma2ForCausalLM(Gemma2Config(**{**DENSE_FIELDS, "layer_types": ["full_attention"] * 6}))
            randomise(model)
        return save(model, tmp_path_factory.mktemp("gemma") / "gemma")

    return cache(lambda kind: gemma() if kind == "gemma" else checkpoint(kind))


@pytest.fixture(scope="module")
def make(folders: Callable[[str], Path]) -> Make:
    """An engine by kind and ring, built without self-tests; None: resident."""

    def built(kind: str, ring: RingShape | None) -> TorchEngine:
        folder = open_checkpoint(folders(kind))
        budget = Budget(8192, 2048, None, 0, ring=ring or WHOLE_LAYERS)
        decision = ModeDecision("cpu" if ring is None else "streamed", budget, "")
        plan = LoadingPlan(torch.float32, CPU)
        return TorchEngine(build(lambda p: load(folder, p), decision, plan=plan, duty=Duty(1.0)))

    return cache(built)


def states(engine: TorchEngine, jobs: list[HiddenJob], *, chunk: int = 2048, on_host: bool = False) -> list[np.ndarray]:
    engine.parts.runner.adopt(Budget(8192, chunk, None, 0, device_tokens=1 if on_host else None))
    return [found.states for found in results(engine, jobs)]


def mixed(layers: tuple[int, ...]) -> list[HiddenJob]:
    return [job(random_ids(n, seed=n), layers, final_norm=True) for n in (75, 20, 66)]


@pytest.mark.parametrize("ring", [ONE_LAYER, SPARE_MATRIX, TWO_MLPS, WHOLE_LAYERS])
@pytest.mark.parametrize("kind", ["hybrid", "qwen3", "gemma"])
@pytest.mark.parametrize("on_host", [False, True])
def test_every_ring_and_every_place_of_the_residual_stream_gives_the_bits_of_resident_layers(
    make: Make, kind: str, ring: RingShape, on_host: bool
) -> None:
    """Chunks of 40 tokens over three rows: 13 columns each."""
    layers = (-1, 0, 2, 3, 5)
    for chunk in (2048, 40) if not on_host else (40,):
        ours = states(make(kind, ring), mixed(layers), chunk=chunk, on_host=on_host)
        theirs = states(make(kind, None), mixed(layers), chunk=chunk)
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(found, expected)


def mixed_experts() -> Anatomy:
    """Dense layers between layers of experts, whose MLPs have other matrices."""
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(**MIXTURE_FIELDS, mlp_only_layers=[0, 3])
    return dissect(build_skeleton(config, torch.float32), has_head=False)


@pytest.mark.parametrize("kind", ["hybrid", "qwen3", "llama", "gemma", "experts"])
def test_rings_take_the_memory_that_is_counted(folders: Callable[[str], Path], kind: str) -> None:
    """But for alignment and the vectors that travel with a matrix."""
    plan = LoadingPlan(torch.float32, CPU)
    anatomy = mixed_experts() if kind == "experts" else load(open_checkpoint(folders(kind)), plan)
    shapes = {name: tuple(tensor.shape) for name, tensor in anatomy.model.named_parameters()}
    sizes = sizes_of_shapes(shapes, anatomy.config.to_dict(), itemsize=4)
    placement = StreamPlacement(anatomy, plan)
    assert (SPARE_MATRIX in sizes.ring_shapes) is (kind in ("hybrid", "qwen3", "llama"))
    for ring in sizes.ring_shapes:
        taken = StreamedWeights(anatomy, placement, device=CPU, shape=ring).buffer_bytes
        cells = 2 * (ring.mixers + ring.mlps * max(1, sizes.mlp_matrices) + ring.spare)
        vectors = 4 * anatomy.config.hidden_size
        assert 0 <= taken - sizes.ring_bytes(ring) <= cells * (REGION_ALIGNMENT + vectors)


def test_matrices_travel_alone_where_every_mlp_has_the_same_few() -> None:
    norms = {"input_layernorm.weight": (8,), "post_attention_layernorm.weight": (8,)}
    mixer = {"self_attn.q_proj.weight": (8, 8)}

    def travel(*mlps: dict[str, tuple[int, ...]]) -> list[list[list[str]]]:
        layers = [norms | mixer | {f"mlp.{name}": shape for name, shape in mlp.items()} for mlp in mlps]
        pieces = pieces_of(layers)
        assert [of_layer["mixer"] for of_layer in pieces] == [[["input_layernorm.weight", *mixer]]] * len(mlps)
        return [of_layer["mlp"] for of_layer in pieces]

    norm = "post_attention_layernorm.weight"
    gated: dict[str, tuple[int, ...]] = {"gate": (32, 8), "gate.bias": (32,), "up": (32, 8), "down": (8, 32)}
    whole = [[norm, *(f"mlp.{name}" for name in gated)]]
    assert travel(gated, gated) == [[[norm, "mlp.gate.bias", "mlp.gate"], ["mlp.up"], ["mlp.down"]]] * 2
    assert travel(gated, {"fc": (32, 8), "proj": (8, 32)})[0] == whole
    assert travel(gated | {"down": (8, 64)}) == [[[*whole[0][:-1], "mlp.down"]]]
    assert travel({"scale": (8,)}) == [[[norm, "mlp.scale"]]]
    assert travel({f"experts.{number}": (8, 8) for number in range(5)}) == [
        [[norm, *(f"mlp.experts.{number}" for number in range(5))]]
    ]
    assert pieces_of([mixer | {"norm.weight": (8,)}]) == [{None: [[*mixer, "norm.weight"]]}]


def test_halves_are_found_where_a_layer_has_them(make: Make) -> None:
    for kind, expected in (("hybrid", True), ("qwen3", True), ("gemma", False)):
        engine = make(kind, ONE_LAYER)
        states(engine, [job(random_ids(70), (5,))])
        runner = engine.parts.runner
        assert [runner._runs._halves.has(index) for index in range(6)] == [expected] * 6
        layer = runner.anatomy.layers[0].layer
        assert (mlp_parts([name for name, _ in layer.named_parameters()]) is not None) is expected


def test_a_layer_whose_second_half_is_something_else_runs_whole(folders: Callable[[str], Path]) -> None:
    """A factor behind the MLP: names look as usual, bits do not agree, and the states are those of the layer."""
    folder = open_checkpoint(folders("llama"))
    engines = []
    for mode in ("cpu", "streamed"):
        budget = Budget(8192, 2048, None, 0, ring=ONE_LAYER)
        decision = ModeDecision(mode, budget, "")  # type: ignore[arg-type]

        def scaled(plan: LoadingPlan) -> object:
            anatomy = load(folder, plan)
            for layer in anatomy.layers:
                layer.register_forward_hook(lambda module, args, output: output * 1.5)
            return anatomy

        plan = LoadingPlan(torch.float32, CPU)
        engines.append(
            TorchEngine(build(scaled, decision, plan=plan, duty=Duty(1.0)))  # type: ignore[arg-type]
        )
    ours, theirs = (states(engine, mixed((0, 5)), chunk=40) for engine in reversed(engines))
    assert not engines[1].parts.runner._runs._halves.has(0)
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("ring", [ONE_LAYER, SPARE_MATRIX, TWO_MLPS, WHOLE_LAYERS])
def test_passes_that_end_anywhere_leave_the_cells_right_for_the_next(make: Make, ring: RingShape) -> None:
    ids = random_ids(11)
    for deepest in (0, 7, 1, 2, 2, -1, 5, 4, 7, 3):
        (expected,) = states(make("hybrid", None), [job(ids, (deepest,))])
        (found,) = states(make("hybrid", ring), [job(ids, (deepest,))])
        np.testing.assert_array_equal(found, expected, err_msg=f"deepest layer {deepest}")


@pytest.mark.parametrize("ring", [SPARE_MATRIX, WHOLE_LAYERS])
def test_a_long_pass_lends_the_memory_of_spare_cells_and_the_next_one_has_them_back(
    make: Make, ring: RingShape
) -> None:
    engine = make("hybrid", ring)
    weights = engine.parts.runner._weights
    held = []
    for on_host in (False, True, False):
        for found, expected in zip(
            states(engine, mixed((0, 4, 7)), chunk=40, on_host=on_host),
            states(make("hybrid", None), mixed((0, 4, 7)), chunk=40),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)
        held.append(weights.buffer_bytes)
        storages = {p.untyped_storage().data_ptr() for step in engine.parts.anatomy.layers for p in step.parameters()}
        assert len(storages) == 1
        assert not any(p.is_inference() for step in engine.parts.anatomy.layers for p in step.parameters())
    states(make("hybrid", ONE_LAYER), [job(random_ids(9), (0,))])
    assert held[0] == held[2] > held[1] == make("hybrid", ONE_LAYER).parts.runner._weights.buffer_bytes


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("ring", [ONE_LAYER, SPARE_MATRIX, WHOLE_LAYERS])
def test_passes_that_are_given_up_or_refused_memory_midway_do_not_touch_the_next(
    make: Make, ring: RingShape, on_host: bool
) -> None:
    engine = make("hybrid", ring)
    for ending in ("cancelled", "memory"):
        asked = 0

        def is_cancelled() -> bool:
            nonlocal asked
            asked += 1
            return asked > 14  # somewhere inside the chunks of a layer

        engine.parts.runner.adopt(Budget(8192, 40, None, 0, device_tokens=1 if on_host else None))
        wanted = job(random_ids(90, seed=3), (7,))
        if ending == "cancelled":
            (outcome,) = engine.execute([replace(wanted, is_cancelled=is_cancelled)])
            assert isinstance(outcome, DeadlineError)
        else:
            layer = engine.parts.anatomy.layers[4].layer

            def refuse(module: torch.nn.Module, args: object) -> None:
                raise torch.OutOfMemoryError("planted")

            handle = layer.mlp.register_forward_pre_hook(refuse)
            (outcome,) = engine.execute([wanted])
            handle.remove()
            assert isinstance(outcome, UnavailableError)
        ours = states(engine, mixed((0, 4, 7)), chunk=40, on_host=on_host)
        theirs = states(make("hybrid", None), mixed((0, 4, 7)), chunk=40)
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("length", [63, 64, 65, 79, 80, 81, 128, 129])
def test_a_long_prompt_in_chunks_is_the_prompt_in_one_piece(make: Make, length: int) -> None:
    """Chunks of 16 and 40 against one shot: equal up to the order of sums in float32."""
    wanted = [job(random_ids(length, seed=length), (-1, 0, 3, 7))]
    (whole,) = states(make("hybrid", None), wanted)
    for chunk in (16, 40):
        (pieces,) = states(make("hybrid", ONE_LAYER), wanted, chunk=chunk, on_host=True)
        np.testing.assert_array_equal(pieces, states(make("hybrid", None), wanted, chunk=chunk)[0])
        assert relative_difference(pieces, whole) < FLOAT32_TOLERANCE


def test_a_long_pass_keeps_its_host_memory_for_the_next_and_only_a_few_chunks_on_the_device(make: Make) -> None:
    runner = make("hybrid", None).parts.runner
    lengths = []
    take = runner._memory.take
    for length in (300, 200):
        wanted = [job(random_ids(length), (2,), start=length - 1)]
        (found,) = states(make("hybrid", None), wanted, chunk=40, on_host=True)
        np.testing.assert_array_equal(found, states(make("hybrid", None), wanted, chunk=40)[0])
        lengths.append(take(1).untyped_storage().nbytes())
    assert lengths[0] == lengths[1] == 300 * 64 * 4


def test_only_the_embedding_output_of_a_long_prompt(make: Make) -> None:
    wanted = [job(random_ids(90), (-1,))]
    (found,) = states(make("hybrid", ONE_LAYER), wanted, chunk=40, on_host=True)
    (expected,) = states(make("hybrid", None), wanted)
    np.testing.assert_array_equal(found, expected)


def test_a_decoder_that_changes_its_input_keeps_the_residual_stream_on_the_device(make: Make) -> None:
    """What reaches its first layer is not the placeholder, so the decoder must see real embeddings."""
    runner = make("llama", None).parts.runner
    assert runner.takes_long_prompts
    runner._takes_long_prompts = None
    decoder = runner.anatomy.decoder
    handle = decoder.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | {"inputs_embeds": kwargs["inputs_embeds"] * 1.0}), with_kwargs=True
    )
    try:
        assert not runner.takes_long_prompts
        (found,) = states(make("llama", None), [job(random_ids(90), (3,))], chunk=40, on_host=True)
    finally:
        handle.remove()
        runner._takes_long_prompts = None
    np.testing.assert_array_equal(found, states(make("llama", None), [job(random_ids(90), (3,))], chunk=40)[0])


@pytest.mark.parametrize(
    ("length", "width"), [(1, 1), (1, 8), (8, 8), (9, 8), (17, 8), (16, 8), (5, 2), (3, 1), (9, 4)]
)
def test_chunks_cover_a_sequence_in_order_and_leave_no_single_token_over(length: int, width: int) -> None:
    bounds = chunk_bounds(length, width)
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == length
    assert all(0 < stop - start <= width for start, stop in bounds)
    if width > 2 and length > 1:
        assert all(stop - start > 1 for start, stop in bounds)
