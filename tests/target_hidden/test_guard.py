"""A CPU run beside a CUDA build of torch: `fla` and `triton` are importable and there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.engine import Checkpoint
from tauscope_target.guard import block_gpu_kernels
from tauscope_wire.errors import UnavailableError

FLA = '''
"""Stands in for flash-linear-attention with triton but without a driver: imports well, fails when called."""
'''
FLA_RULE = """
def chunk_gated_delta_rule(q, k, v, g, beta, **kwargs):
    raise RuntimeError("0 active drivers ([]). There should only be one.")

fused_recurrent_gated_delta_rule = chunk_gated_delta_rule
"""
RUN = """
import sys
from pathlib import Path
from tauscope_target.startup import EngineSettings, start_engine
engine = start_engine(EngineSettings(Path(sys.argv[1]), "cpu", allow_reference_kernels=True))
print(engine.facts.numerics.linear_attention, sys.modules.get("fla"), sys.modules.get("triton"))
"""
RUN_WITHOUT_GUARD = """
import sys
sys.modules['triton'] = None  # torch's compiler needs more of triton than the stand-in has
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model(torch.arange(4, 80)[None])
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """Environment in which the planted packages are found first."""
    rule = tmp_path / "fla" / "ops" / "gated_delta_rule"
    rule.mkdir(parents=True)
    (tmp_path / "fla" / "__init__.py").write_text(FLA)
    (tmp_path / "fla" / "ops" / "__init__.py").write_text("")
    (rule / "__init__.py").write_text(FLA_RULE)
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("__version__ = '3.9.0'\n")
    return os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}


def run(code: str, folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_the_planted_packages_do_break_an_unguarded_forward(checkpoint: Checkpoint, stand_ins: dict[str, str]) -> None:
    broken = run(RUN_WITHOUT_GUARD, checkpoint("hybrid"), stand_ins)
    assert broken.returncode != 0
    assert "0 active drivers" in broken.stderr


def test_the_service_computes_with_reference_functions_beside_importable_fla_and_triton(
    checkpoint: Checkpoint, stand_ins: dict[str, str]
) -> None:
    guarded = run(RUN, checkpoint("hybrid"), stand_ins)
    assert guarded.returncode == 0, guarded.stderr
    assert guarded.stdout.split() == ["torch-reference", "None", "None"]


def test_an_fla_that_is_imported_beside_triton_is_refused_in_one_sentence() -> None:
    modules: dict[str, Any] = {"fla": object()}
    with pytest.raises(UnavailableError, match="process of its own"):
        block_gpu_kernels(modules, has_triton=lambda: True)


def test_an_fla_that_is_imported_without_triton_is_harmless() -> None:
    fla = object()
    modules: dict[str, Any] = {"fla": fla}
    block_gpu_kernels(modules, has_triton=lambda: False)
    assert modules == {"fla": fla}


def test_blocking_twice_is_blocking_once() -> None:
    modules: dict[str, Any] = {}
    block_gpu_kernels(modules)
    block_gpu_kernels(modules)
    assert modules == {"fla": None, "triton": None}


def test_a_triton_that_is_imported_already_is_left_alone() -> None:
    triton = object()
    modules: dict[str, Any] = {"triton": triton}
    block_gpu_kernels(modules)
    assert modules == {"fla": None, "triton": triton}
