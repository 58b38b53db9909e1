"""Peak memory of loading: one copy of the weights, read straight into place."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kit.models import tiny_vision_hybrid

CODE = """
import json, resource, sys
from pathlib import Path
import torch
from tauscope_target.checkpoint import open_checkpoint
from tauscope_target.loading import LoadingPlan, load
from tauscope_target.streaming import StreamPlacement

folder = open_checkpoint(Path(sys.argv[1]))
plan = LoadingPlan(torch.bfloat16, torch.device("cpu"))
if sys.argv[2] == "streamed":
    place = lambda anatomy: StreamPlacement(anatomy, plan).allocate
    plan = LoadingPlan(torch.bfloat16, torch.device("cpu"), place=place)
from tauscope_target.skeleton import build_skeleton, read_config
build_skeleton(read_config(folder), torch.bfloat16)  # imports are not what is measured
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
anatomy = load(folder, plan)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = sum(p.numel() * p.element_size() for p in anatomy.model.parameters())
print(json.dumps({"growth": (after - before) * 1024, "held": held}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["resident", "streamed"])
def test_loading_peaks_at_one_copy_of_what_is_kept(tmp_path: Path, mode: str) -> None:
    """The vision tower, 100 MB here, is in the files and never in memory."""
    folder = tiny_vision_hybrid(
        tmp_path / "large", hidden_size=1024, intermediate_size=4096, vocab_size=20_000, dtype=torch.bfloat16
    )
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    save_file(
        {"model.visual.extra.weight": torch.zeros(50_000_000, dtype=torch.bfloat16)}, folder / "vision.safetensors"
    )
    index["weight_map"]["model.visual.extra.weight"] = "vision.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder), mode], capture_output=True, text=True, timeout=240, check=True
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["held"] > 200e6
    # one copy, and the largest tensor on its way where dtype or device differ (none here)
    assert report["growth"] < 1.1 * report["held"] + 20e6
