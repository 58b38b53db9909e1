"""Where weights go within a cap, streamed weights, and the plan of one service or both."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.cli import main
from tauscope_drafter.loading import load, open_place
from tauscope_drafter.placement import (
    CONTEXT_BYTES,
    GPU_MODES,
    DrafterSizes,
    Placement,
    Rates,
    choose,
    place,
    seconds,
)
from tauscope_drafter.streamed_weights import RESIDENT_BYTES, StreamedWeights
from tauscope_wire.errors import MismatchError

# The drafter of a 27B target: 5 layers, hidden 5120, MLP 17408, block 16, vocabulary 248320.
REAL = DrafterSizes(
    parameters=(1_730_000_000,),
    largest_tensor=5120 * 25600,
    head=248_320 * 5120,
    vocab=248_320,
    block=16,
    drafts=15,
    anchor_elements=16 * (8 * 5120 + 3 * 17408),
    context_elements=2 * 5 * 8 * 128,
)
GIB = 1 << 30


@pytest.mark.parametrize(("gib", "mode"), [(80, "resident"), (8, "resident"), (6, "head-streamed"), (2.5, "streamed")])
def test_the_fastest_mode_that_fits_is_chosen(gib: float, mode: str) -> None:
    placement = choose(REAL, int(gib * GIB))
    assert placement.mode == mode
    assert placement.gpu_bytes <= gib * GIB
    assert placement.gpu_bytes > CONTEXT_BYTES


def test_a_cap_that_nothing_fits_says_what_is_needed() -> None:
    with pytest.raises(MismatchError, match=r"resident .* GiB, head-streamed .* GiB, streamed .* GiB"):
        choose(REAL, GIB)


def test_more_memory_never_gives_smaller_batches() -> None:
    for mode in GPU_MODES:
        found = [place(REAL, mode, int(g * GIB)) for g in (2.0, 2.5, 4, 7, 9, 20, 80)]
        placed = [p for p in found if isinstance(p, Placement)]
        assert placed
        assert all(a.batch_bytes <= b.batch_bytes for a, b in pairwise(placed))


def test_estimates_follow_the_slower_of_products_and_bus() -> None:
    slow_bus, fast_bus = Rates(1e9, 5e14, 1e12), Rates(1e12, 5e14, 1e12)
    placement = choose(REAL, int(2.5 * GIB))
    resident = seconds(REAL, "resident", fast_bus, anchors=2048, placement=None)
    # by count: 2 * 2048 * (16 * 1.73e9 + 15 * 1.27e9) operations at 65 % of 5e14 a second
    assert resident == pytest.approx(0.587, rel=0.01)
    assert seconds(REAL, "streamed", slow_bus, anchors=2048, placement=placement) > 10 * resident
    assert seconds(REAL, "streamed", fast_bus, anchors=2048, placement=placement) == pytest.approx(resident)
    assert seconds(REAL, "cpu", fast_bus, anchors=2048, placement=None) == pytest.approx(500 * resident)


def test_streamed_weights_draft_the_same(tmp_path: Path) -> None:
    target = drafters.write_target(tmp_path / "target")
    folder = drafters.write_folder(tmp_path / "d", drafters.dflash_config(), drafters.dflash_tensors())
    states, ids = drafters.random_sequence()
    found = []
    for streamed in (False, True):
        place = open_place(torch.device("cpu"), torch.float32, target, head_on_host=True, stream_networks=streamed)
        network = load(folder, LoadOptions(), place).network
        with torch.inference_mode():
            found.append(network.draft(network.fuse(states, ids), [3, 20], ids, top_k=5))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_only_small_tensors_stay_on_the_device() -> None:
    device = torch.device("meta")  # a device that is not the host and is everywhere
    weights = {"norm": torch.ones(8), "wide": torch.ones(RESIDENT_BYTES // 4 + 1)}
    streamed = StreamedWeights(weights, device)
    assert streamed.device_bytes == 32
    assert streamed["wide"].device == device
    assert set(streamed) == {"norm", "wide"}


def test_the_plan_names_modes_times_and_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = drafters.write_target(tmp_path / "target")
    folder = drafters.write_folder(tmp_path / "d", drafters.dflash_config(), drafters.dflash_tensors())
    target_plan = tmp_path / "target.json"
    modes = [
        {"mode": "streamed", "fits": True, "gpu_bytes": GIB, "host_bytes": GIB},
        {"mode": "resident", "fits": False, "gpu_bytes": 0, "host_bytes": 0},
    ]
    target_plan.write_text(json.dumps({"modes": modes}))
    arguments = ["plan", "--drafter", f"a={folder}", "--target-model", str(target), "--cpu-gflops", "100", "--json"]
    both = ["--gpu-memory", "1GiB", "--card-memory", "1.5GiB", "--target-plan", str(target_plan)]
    assert main([*arguments, *both]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [m["mode"] for m in report["modes"]] == [*GPU_MODES, "cpu"]
    assert all(m["fits"] for m in report["modes"])
    pairs = {(p["target"], p["drafter"]): p["fits"] for p in report["both"]}
    assert pairs == {
        ("streamed", "resident"): False,
        ("streamed", "head-streamed"): False,
        ("streamed", "streamed"): False,
        ("streamed", "cpu"): True,
    }
    assert main([*arguments, "--host-memory", "1KiB"]) == 4
    assert main([*arguments, "--target-plan", str(folder / "config.json")]) == 2
