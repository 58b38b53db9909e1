"""Tiny checkpoints and started engines, built once for all tests of the target service."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from kit.engine import Checkpoint, Reference, Start
from kit.models import tiny_hybrid, tiny_llama, tiny_qwen3, tiny_vision_hybrid
from tauscope_target.startup import EngineSettings, start_engine

torch.set_num_threads(1)
logging.set_verbosity_error()

BUILDERS: dict[str, Callable[..., Path]] = {
    "hybrid": tiny_hybrid,
    "vision": tiny_vision_hybrid,
    "qwen3": tiny_qwen3,
    "llama": tiny_llama,
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Folder of a tiny checkpoint by kind; read-only for tests."""
    return cache(lambda kind: BUILDERS[kind](tmp_path_factory.mktemp("checkpoints") / kind))


@pytest.fixture(scope="session")
def start(checkpoint: Checkpoint) -> Start:
    """Started float32 engine on the CPU by kind; shared, so tests leave it as it was."""
    return cache(lambda kind: start_engine(EngineSettings(checkpoint(kind), "cpu", allow_reference_kernels=True)))


@pytest.fixture(scope="session")
def reference(checkpoint: Checkpoint) -> Reference:
    """The same checkpoint loaded by transformers itself, in float32."""
    return cache(lambda kind: AutoModelForCausalLM.from_pretrained(checkpoint(kind), dtype=torch.float32).eval())
