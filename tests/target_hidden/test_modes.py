"""Which mode is chosen for which memory, in the shape of a 27B hybrid; and what is refused, with numbers."""

from dataclasses import replace

import pytest

from kit.engine import Checkpoint
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.duty import SHARED_DUTY
from tauscope_target.memory import CONTEXT_BYTES, ModelSizes, fit
from tauscope_target.modes import MemoryFacts, ModeRequest, decide, default_duty
from tauscope_target.sizes import model_sizes
from tauscope_wire.errors import ErrorCode, RequestError, UnavailableError

GIB = 1 << 30
LINEAR_LAYER, FULL_LAYER = 770_000_000, 740_000_000
SHAPE_27B = ModelSizes(
    hidden=5120,
    intermediate=17408,
    num_layers=64,
    vocab=248_320,
    layer_bytes=(LINEAR_LAYER, LINEAR_LAYER, LINEAR_LAYER, FULL_LAYER) * 16,
    embedding_bytes=248_320 * 5120 * 2,
    head_bytes=248_320 * 5120 * 2,
    has_head=True,
    kv_bytes_per_token=2 * 4 * 256 * 2,
    mixer_width=16_384,
    itemsize=2,
)


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
    assert decision.budget.pass_tokens >= 1024
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


@pytest.mark.parametrize("free", [0.1, 1.0, 1.7])
def test_too_little_memory_is_refused_with_what_each_mode_needs(free: float) -> None:
    with pytest.raises(UnavailableError, match=r"resident needs 50\.8\d GiB.*streamed needs 1\.5\d GiB") as caught:
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
    assert replace(sizes, layer_bytes=sizes.layer_bytes[:4], head_bytes=0, has_head=False) == cut
