"""The resource calculus: in the 27B shape against the table that was measured, and as a command."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kit.engine import Checkpoint
from kit.sizes import SHAPE_27B
from tauscope_target.cli import main
from tauscope_target.plan import Limits, Rates, answer_bytes_per_token, plan_modes

GIB = 1 << 30
H200 = Rates(bus_bytes_s=55e9, gpu_flop_s=690e12, cpu_flop_s=1e12)


def test_the_estimate_is_within_a_quarter_of_what_was_measured_on_one_h200() -> None:
    """16k tokens: 1.43 s resident; 512 tokens streamed: 0.86 s, the floor of weights over bus."""
    resident, streamed, _ = plan_modes(SHAPE_27B, Limits(140 * GIB, 200 * GIB), H200, deepest_layer=61)
    assert resident.s_per_1k_tokens == pytest.approx(1.43 / 16.384, rel=0.25)
    assert streamed.s_per_small_pass == pytest.approx(0.858, rel=0.25)
    assert streamed.s_per_1k_tokens == pytest.approx(resident.s_per_1k_tokens, rel=0.1)


def test_a_small_card_streams_and_says_why_it_cannot_hold_the_model() -> None:
    resident, streamed, cpu = plan_modes(SHAPE_27B, Limits(int(2.5 * GIB), 200 * GIB), H200)
    assert not resident.fits
    assert "may be used" in resident.why
    assert streamed.fits
    assert streamed.gpu_bytes <= 2.5 * GIB
    assert streamed.pinned_bytes < streamed.host_bytes < 60 * GIB
    assert cpu.fits
    assert "float32" in cpu.why


def test_a_tied_head_travels_from_the_embedding_which_is_pinned_with_the_layers() -> None:
    tied = replace(SHAPE_27B, head_bytes=0)
    for sizes, extra in (
        (SHAPE_27B, SHAPE_27B.head_bytes),
        (tied, SHAPE_27B.embedding_bytes),
        (replace(tied, has_head=False), 0),
    ):
        _, streamed, _ = plan_modes(sizes, Limits(4 * GIB, 200 * GIB), H200)
        assert streamed.pinned_bytes == sum(sizes.layer_bytes) + extra


@pytest.mark.parametrize(
    ("host_gib", "streams", "cpu_why"), [(40, False, "host memory"), (60, True, "BF16"), (150, True, "float32")]
)
def test_host_memory_decides_the_host_modes(host_gib: int, streams: bool, cpu_why: str) -> None:
    _, streamed, cpu = plan_modes(SHAPE_27B, Limits(3 * GIB, host_gib * GIB), H200)
    assert streamed.fits is streams
    assert cpu_why in cpu.why


def test_a_slow_bus_bounds_streaming_and_not_residence() -> None:
    slow = replace(H200, bus_bytes_s=5e9)
    resident, streamed, _ = plan_modes(SHAPE_27B, Limits(140 * GIB, None), slow)
    assert "matrix products" in resident.why
    assert "the bus" in streamed.why


def test_bytes_of_an_answer_are_planes_times_width() -> None:
    assert answer_bytes_per_token(SHAPE_27B, 5) == 51_200


def test_the_command_reads_headers_only_and_imports_no_torch(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The weights are cut out of the file: only its header is left, and its size kept by a hole."""
    source = checkpoint("hybrid")
    for file in source.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    content = (source / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little") + 8
    with (tmp_path / "model.safetensors").open("wb") as hollow:
        hollow.write(content[:length])
        hollow.truncate(len(content))
    code = (
        "import sys\n"
        "from tauscope_target.cli import main\n"
        "options = ['--gpu-memory', '4GiB', '--layers', '1,3', '--json']\n"
        f"assert main(['plan', '--model', {str(tmp_path)!r}, *options]) == 0\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [mode["mode"] for mode in report["modes"]] == ["resident", "streamed", "cpu"]
    assert report["answer_bytes_per_token"] == 2 * 64 * 2
    assert all(mode["fits"] for mode in report["modes"])


def test_a_layer_that_does_not_exist_is_refused(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", str(checkpoint("hybrid")), "--layers", "1,8"], environ={}) == 2
    assert "--layers 8: the model has 8 decoder layers (0..7)" in capsys.readouterr().err


def test_nothing_that_fits_is_an_exit_code_of_its_own(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model", str(checkpoint("hybrid")), "--host-memory", "1KiB"], environ={}) == 4
    assert capsys.readouterr().out.count("no:") == 3
