"""Which mode is chosen for which memory, in the shape of a 27B hybrid; and what is refused, with numbers."""

from dataclasses import replace

import pytest

from kit.engine import Checkpoint
from kit.sizes import LINEAR_LAYER, SHAPE_27B
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.device_memory import MemoryFacts
from tauscope_target.duty import SHARED_DUTY
from tauscope_target.fitting import LONG_TOKENS, MIXER_COMPUTE, fit, fit_cap, overlapped
from tauscope_target.memory import (
    CONTEXT_BYTES,
    KEPT_FREE_BYTES,
    ONE_LAYER,
    RESERVE_BYTES,
    SPARE_MATRIX,
    TWO_MLPS,
    WHOLE_LAYERS,
    RingShape,
)
from tauscope_target.modes import ModeDecision, ModeRequest, decide, default_duty, settle, tensor_bound
from tauscope_target.sizes import model_sizes, sizes_of_shapes
from tauscope_wire.errors import ErrorCode, RequestError, UnavailableError

GIB = 1 << 30


def memory(free_gib: float, *, total_gib: float = 48, host_gib: float = 280) -> MemoryFacts:
    return MemoryFacts(int(free_gib * GIB), int(total_gib * GIB), CONTEXT_BYTES, int(host_gib * GIB))


def test_a_large_empty_card_holds_the_model() -> None:
    decision = decide(SHAPE_27B, ModeRequest(), memory(130, total_gib=140))
    assert decision.mode == "resident"
    assert decision.budget.pass_tokens == 16_384
    assert default_duty(memory(138, total_gib=140)) == 1.0


def test_a_few_free_gigabytes_beside_a_full_server_stream_the_model() -> None:
    decision = decide(SHAPE_27B, ModeRequest(gpu_memory=int(2.5 * GIB)), memory(2.6))
    assert decision.mode == "streamed"
    assert decision.budget.pass_tokens == 16_384
    assert decision.budget.chunk_tokens >= 2048
    assert decision.budget.bytes <= 2.5 * GIB - CONTEXT_BYTES
    assert "resident needs" in decision.reason
    assert default_duty(memory(2.6)) == SHARED_DUTY


def test_four_gigabytes_hold_a_pass_of_eight_thousand_tokens_in_chunks_of_thousands() -> None:
    decision = decide(SHAPE_27B, ModeRequest(gpu_memory=4 * GIB, weights="streamed"), memory(100, total_gib=140))
    assert decision.budget.pass_tokens >= 8192
    assert decision.budget.chunk_tokens >= 2048


def test_a_bigger_cap_never_gives_a_smaller_pass() -> None:
    passes = [
        budget.pass_tokens
        for tenths in range(16, 80)
        if (budget := fit(SHAPE_27B, "streamed", tenths * GIB // 10, pass_tokens=None, chunk_tokens=None))
    ]
    assert passes == sorted(passes)
    assert passes[-1] == 16_384


@pytest.mark.parametrize("free", [0.1, 0.7, 0.9])
def test_too_little_memory_is_refused_with_what_each_mode_needs(free: float) -> None:
    with pytest.raises(UnavailableError, match=r"resident needs 5\d\.\d\d GiB.*streamed needs 0\.8\d GiB") as caught:
        decide(SHAPE_27B, ModeRequest(), memory(free))
    assert caught.value.code is ErrorCode.OUT_OF_MEMORY


def test_streaming_needs_the_host_to_hold_the_weights() -> None:
    with pytest.raises(UnavailableError, match="host memory"):
        decide(SHAPE_27B, ModeRequest(weights="streamed"), memory(3, host_gib=40))


def test_a_pass_asked_for_by_name_must_fit() -> None:
    fitting = decide(SHAPE_27B, ModeRequest(weights="streamed", pass_tokens=4096), memory(4))
    assert fitting.budget.pass_tokens == 4096
    with pytest.raises(UnavailableError):
        decide(SHAPE_27B, ModeRequest(weights="streamed", pass_tokens=1_000_000), memory(4))


def test_two_and_a_half_gigabytes_hold_128k_tokens_and_more_memory_never_less() -> None:
    budgets = [fit_cap(SHAPE_27B, "streamed", quarters * GIB // 4) for quarters in range(9, 40)]
    longest = [min(LONG_TOKENS, budget.longest_tokens or 0) for budget in budgets if budget is not None]
    assert longest == sorted(longest)
    at_cap = fit_cap(SHAPE_27B, "streamed", int(2.5 * GIB))
    assert at_cap is not None
    assert at_cap.longest_tokens is not None
    assert at_cap.longest_tokens >= LONG_TOKENS
    assert at_cap.device_tokens is not None
    assert at_cap.pass_tokens <= at_cap.device_tokens < at_cap.longest_tokens


def test_every_budget_stays_within_its_cap_down_to_the_long_prompt() -> None:
    for tenths in range(20, 100):
        cap = tenths * GIB // 10
        budget = fit_cap(SHAPE_27B, "streamed", cap)
        if budget is None:
            continue
        room = cap - CONTEXT_BYTES - RESERVE_BYTES
        head = (2 * 512 + 2 * 4096) * 5120 * 2 + (1 << 21) * 40
        assert budget.bytes <= room
        assert budget.longest_tokens is not None
        assert budget.long_chunk_tokens is not None
        if budget.longest_tokens > (budget.device_tokens or 0):
            activations = budget.long_chunk_tokens * SHAPE_27B.chunk_bytes_per_token
            held = budget.longest_tokens * (SHAPE_27B.kv_bytes_per_token + 512) + budget.long_chunk_tokens * 3 * 10_240
            assert SHAPE_27B.ring_bytes(ONE_LAYER) + max(head, activations) + held <= room


def test_the_ring_grows_with_the_memory() -> None:
    rings = [
        budget.ring
        for tenths in range(20, 80)
        if (budget := fit_cap(SHAPE_27B, "streamed", tenths * GIB // 10)) is not None
    ]
    assert rings[0] == ONE_LAYER
    assert rings == sorted(rings, key=[ONE_LAYER, SPARE_MATRIX, TWO_MLPS, WHOLE_LAYERS].index)
    whole = replace(SHAPE_27B, mlp_bytes=())
    assert whole.ring_shapes == (WHOLE_LAYERS,)
    assert whole.ring_bytes(WHOLE_LAYERS) == 2 * LINEAR_LAYER


def simulated(cells: dict[str, int], copy: dict[str, float], compute: dict[str, float], layers: int = 400) -> float:
    """Time of a layer in the middle of a long pass: one bus, one compute stream, pieces in the order of use.

    A mixer is one piece and an MLP three; each piece takes the next cell of its kind once the piece before it there was
    used, and a half runs once its pieces have arrived and the half before it has run.
    """
    freed = {kind: [0.0] * number for kind, number in cells.items()}
    turn = dict.fromkeys(cells, 0)
    bus = done = 0.0
    ends = []
    for _ in range(layers):
        for kind, pieces in (("mixer", 1), ("mlp", 3)):
            taken = []
            for _ in range(pieces):
                cell = turn[kind] % cells[kind]
                turn[kind] += 1
                bus = max(bus, freed[kind][cell]) + copy[kind] / pieces
                taken.append(cell)
            done = max(done, bus) + compute[kind]
            for cell in taken:
                freed[kind][cell] = done
        ends.append(done)
    return (ends[-1] - ends[layers // 2]) / (layers - 1 - layers // 2)


@pytest.mark.parametrize(("ring", "within"), [(ONE_LAYER, 1e-9), (SPARE_MATRIX, 1e-9), (TWO_MLPS, 0.02)])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 2.0, 5.0])
def test_the_estimate_of_overlap_is_that_of_a_simulated_ring(ring: RingShape, within: float, ratio: float) -> None:
    """Within rounding; with two MLPs the estimate is the bound itself."""
    mlp_copy = sum(SHAPE_27B.mlp_bytes) / sum(SHAPE_27B.layer_bytes)
    found = simulated(
        {"mixer": ring.mixers, "mlp": 3 * ring.mlps + ring.spare},
        {"mixer": 1 - mlp_copy, "mlp": mlp_copy},
        {"mixer": MIXER_COMPUTE * ratio, "mlp": (1 - MIXER_COMPUTE) * ratio},
    )
    assert overlapped(ring, SHAPE_27B, copy=1.0, compute=ratio) == pytest.approx(found, rel=within)


def test_a_spare_matrix_keeps_the_bus_busy_where_layers_compute_for_almost_as_long_as_they_travel() -> None:
    assert overlapped(ONE_LAYER, SHAPE_27B, copy=1.0, compute=0.84) > 1.15
    assert overlapped(SPARE_MATRIX, SHAPE_27B, copy=1.0, compute=0.84) == pytest.approx(1.0)


def test_only_mlps_of_equal_matrices_have_a_spare_cell() -> None:
    config = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 16}
    for mlp, matrices in (
        ({"gate_proj": (32, 8), "up_proj": (32, 8), "down_proj": (8, 32)}, 3),
        ({"c_fc": (32, 8), "c_proj": (8, 32)}, 2),
        ({"experts.gate_up_proj": (4, 64, 8), "experts.down_proj": (4, 8, 32), "router": (4, 8)}, 0),
        ({f"experts.{number}.up_proj": (32, 8) for number in range(5)}, 0),
    ):
        shapes = {
            f"model.layers.{layer}.{name}.weight": shape
            for layer in range(2)
            for name, shape in {
                "input_layernorm": (8,),
                "self_attn.q_proj": (8, 8),
                "post_attention_layernorm": (8,),
                **{f"mlp.{name}": shape for name, shape in mlp.items()},
            }.items()
        }
        sizes = sizes_of_shapes(shapes, config, itemsize=2)
        assert sizes.mlp_matrices == matrices
        assert (SPARE_MATRIX in sizes.ring_shapes) is (matrices > 1)
        if matrices:
            ring, whole = sizes.ring_bytes(SPARE_MATRIX), sizes.ring_bytes(ONE_LAYER)
            assert ring - whole == pytest.approx(32 * 8 * 2, abs=8 * 2)


def test_a_context_that_turns_out_larger_makes_the_pass_smaller_or_is_refused() -> None:
    request = ModeRequest(gpu_memory=int(2.5 * GIB), weights="streamed")
    decision = decide(SHAPE_27B, request, memory(2.6))
    assert settle(SHAPE_27B, request, decision, context=CONTEXT_BYTES) == decision.budget
    smaller = settle(SHAPE_27B, request, decision, context=CONTEXT_BYTES + GIB // 3)
    assert smaller.ring == decision.budget.ring
    assert smaller.bytes <= 2.5 * GIB - CONTEXT_BYTES - GIB // 3 - RESERVE_BYTES
    with pytest.raises(UnavailableError, match=r"--gpu-memory 2\.50 GiB"):
        settle(SHAPE_27B, request, decision, context=2 * GIB)
    unbounded = ModeDecision("streamed", decision.budget, "")
    assert settle(SHAPE_27B, ModeRequest(), unbounded, context=2 * GIB) is decision.budget


def test_tensors_leave_a_reserve_of_what_was_free_and_never_exceed_a_cap() -> None:
    facts = replace(memory(4), context_to_come=GIB // 2)
    free = 4 * GIB - GIB // 2 - KEPT_FREE_BYTES
    assert tensor_bound(ModeRequest(), facts, context=None) == free
    assert tensor_bound(ModeRequest(gpu_memory=40 * GIB), facts, context=2 * GIB) == free
    capped = ModeRequest(gpu_memory=2 * GIB)
    assert tensor_bound(capped, facts, context=None) == 2 * GIB - CONTEXT_BYTES
    assert tensor_bound(capped, facts, context=CONTEXT_BYTES - 1) == 2 * GIB - CONTEXT_BYTES
    assert tensor_bound(capped, facts, context=CONTEXT_BYTES + 7) == 2 * GIB - CONTEXT_BYTES - 7
    assert tensor_bound(capped, facts, context=3 * GIB) == 0


def test_context_that_is_still_to_come_is_not_free() -> None:
    facts = replace(memory(4), context_to_come=GIB)
    budget = decide(SHAPE_27B, ModeRequest(weights="streamed"), facts).budget
    assert budget.bytes <= 3 * GIB - RESERVE_BYTES
    assert default_duty(replace(memory(48 - 0.5), context_to_come=CONTEXT_BYTES - GIB // 2)) == 1.0


def test_without_a_gpu_only_host_modes_exist() -> None:
    host = MemoryFacts(None, 0, 0, 10 * GIB)
    assert decide(SHAPE_27B, ModeRequest(), host).mode == "cpu"
    assert decide(SHAPE_27B, ModeRequest(weights="streamed"), host).mode == "streamed"
    with pytest.raises(RequestError, match="no GPU"):
        decide(SHAPE_27B, ModeRequest(weights="resident"), host)
    with pytest.raises(RequestError, match="--device cpu"):
        decide(SHAPE_27B, ModeRequest(weights="cpu"), memory(40))


def test_sizes_are_those_of_the_tensors_that_would_be_loaded(checkpoint: Checkpoint) -> None:
    folder = open_checkpoint(checkpoint("vision"))
    sizes = model_sizes(folder, folder.text_config, itemsize=2, deepest_layer=None, with_head=True)
    kept = sum(e.nbytes for name, e in folder.entries.items() if not name.startswith(("model.visual.", "mtp.")))
    norm = folder.entries["model.language_model.norm.weight"].nbytes
    assert sizes.weights_bytes == kept - norm
    assert len(sizes.layer_bytes) == 8
    cut = model_sizes(folder, folder.text_config, itemsize=2, deepest_layer=3, with_head=False)
    assert len(cut.layer_bytes) == 4
    assert cut.head_bytes == 0
    expected = replace(sizes, layer_bytes=sizes.layer_bytes[:4], mlp_bytes=sizes.mlp_bytes[:4])
    assert replace(expected, head_bytes=0, has_head=False) == cut
    assert sizes.mlp_bytes == ((3 * 64 * 128 + 64) * 2,) * 8
