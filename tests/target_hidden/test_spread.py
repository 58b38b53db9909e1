"""A resident model over several devices: who gets which layers, and that crossing changes nothing."""

import numpy as np
import pytest
import torch

from kit.engine import Checkpoint, Start, job, random_ids, results
from kit.sizes import SHAPE_27B
from tauscope_target.arithmetic import numbered_devices
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.duty import Duty
from tauscope_target.engine import TorchEngine
from tauscope_target.forward import moved
from tauscope_target.jobs import LogitsSpec
from tauscope_target.loading import LoadingPlan, load
from tauscope_target.memory import CONTEXT_BYTES, Budget
from tauscope_target.modes import MemoryFacts, ModeDecision, ModeRequest
from tauscope_target.spread import Spread, assign_layers, build_spread, decide_spread
from tauscope_wire.errors import RequestError, UnavailableError

GIB = 1 << 30
CPU = torch.device("cpu")


def memory(free_gib: float) -> MemoryFacts:
    return MemoryFacts(int(free_gib * GIB), 48 * GIB, CONTEXT_BYTES, 280 * GIB)


def cuda(count: int) -> list[torch.device]:
    return [torch.device("cuda", number) for number in range(count)]


@pytest.mark.parametrize(
    ("sizes", "room", "expected"),
    [
        ([1] * 4, [4, 4], (0, 0, 1, 1)),
        ([1] * 4, [3, 1], (0, 0, 0, 1)),
        ([1] * 4, [0, 4], (1, 1, 1, 1)),
        ([1] * 4, [4], (0, 0, 0, 0)),
        ([1] * 4, [1, 2], None),
        ([3, 3, 3], [4, 4, 4], (0, 1, 2)),
        ([3, 3], [5, 2], None),
        ([1] * 6, [2, 2, 2], (0, 0, 1, 1, 2, 2)),
    ],
)
def test_layers_go_to_devices_in_order_and_within_their_room(
    sizes: list[int], room: list[int], expected: tuple[int, ...] | None
) -> None:
    found = assign_layers(sizes, room)
    assert found == expected
    if found is not None:
        assert list(found) == sorted(found)
        held = [sum(s for s, d in zip(sizes, found, strict=True) if d == device) for device in range(len(room))]
        assert all(used <= have for used, have in zip(held, room, strict=True))


def test_a_27b_fits_on_two_cards_of_48_gb_and_not_on_one() -> None:
    decision, spread = decide_spread(SHAPE_27B, ModeRequest(), cuda(2), [memory(46), memory(46)])
    assert decision.mode == "resident"
    assert decision.budget.pass_tokens == 16_384
    assert 28 <= spread.layers.count(0) <= 36
    with pytest.raises(UnavailableError, match="do not fit"):
        decide_spread(SHAPE_27B, ModeRequest(), cuda(2), [memory(46), memory(4)])


def test_less_room_means_smaller_passes_before_it_means_no() -> None:
    decision, _ = decide_spread(SHAPE_27B, ModeRequest(), cuda(2), [memory(27.5), memory(27.5)])
    assert 256 <= decision.budget.pass_tokens < 16_384


@pytest.mark.parametrize("request_", [ModeRequest(weights="streamed"), ModeRequest(gpu_memory=GIB)])
def test_what_only_one_device_knows_is_refused(request_: ModeRequest) -> None:
    with pytest.raises(RequestError, match="--devices"):
        decide_spread(SHAPE_27B, request_, cuda(2), [memory(46), memory(46)])


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestError, match="--devices"):
        numbered_devices([torch.cuda.device_count()])


def test_every_tensor_moves_and_nothing_else_is_touched() -> None:
    cache = object()
    value = ({"a": torch.ones(2), "b": (torch.zeros(1), None)}, cache, 3)
    found = moved(value, torch.device("meta"))
    assert found[0]["a"].device.type == "meta"
    assert found[0]["b"][0].device.type == "meta"
    assert found[1] is cache
    assert found[2] == 3


@pytest.mark.parametrize("kind", ["hybrid", "qwen3"])
def test_a_spread_model_gives_the_same_bits(checkpoint: Checkpoint, start: Start, kind: str) -> None:
    """Both devices are this CPU: the path is that of several, the arithmetic is compared."""
    folder = open_checkpoint(checkpoint(kind))
    count = int(folder.text_config["num_hidden_layers"])
    spread = Spread((CPU, CPU), (0,) * (count // 2) + (1,) * (count - count // 2))
    plan = LoadingPlan(torch.float32, CPU)
    decision = ModeDecision("resident", Budget(8192, 2048, None, 0), "")
    parts = build_spread(lambda chosen: load(folder, chosen), decision, spread, plan=plan, duty=Duty(1.0))
    wanted = [job(random_ids(n, seed=n), (-1, 1, 5), final_norm=True, logits=LogitsSpec(2, True)) for n in (30, 7)]
    for ours, theirs in zip(results(TorchEngine(parts), wanted), results(start(kind), wanted), strict=True):
        np.testing.assert_array_equal(ours.states, theirs.states)
        assert ours.logits is not None
        assert theirs.logits is not None
        np.testing.assert_array_equal(ours.logits.top_logprobs, theirs.logits.top_logprobs)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_give_the_bits_of_one(checkpoint: Checkpoint) -> None:
    folder = open_checkpoint(checkpoint("llama"))
    plan = LoadingPlan(torch.bfloat16, torch.device("cuda", 0))
    decision = ModeDecision("resident", Budget(8192, 2048, None, 0), "")
    engines = []
    for spread in (Spread((cuda(1)[0],), (0,) * 6), Spread(tuple(cuda(2)), (0, 0, 0, 1, 1, 1))):
        duty = Duty(1.0)
        parts = build_spread(lambda chosen: load(folder, chosen), decision, spread, plan=plan, duty=duty)
        engines.append(TorchEngine(parts))
    wanted = [job(random_ids(n, seed=n), (-1, 1, 5), final_norm=True, dtype="bfloat16") for n in (300, 70)]
    for one, two in zip(*(results(engine, wanted) for engine in engines), strict=True):
        np.testing.assert_array_equal(one.states.view(np.uint16), two.states.view(np.uint16))
