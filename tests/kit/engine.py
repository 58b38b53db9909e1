"""Short ways to ask a started target engine, without HTTP."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.models import VOCAB_SIZE
from tauscope_target.engine import TorchEngine
from tauscope_target.jobs import HiddenJob, HiddenResult

Checkpoint = Callable[[str], Path]
"""Kind of a tiny model to its checkpoint folder."""
Start = Callable[[str], TorchEngine]
"""Kind of a tiny model to a started engine."""
Reference = Callable[[str], Any]
"""Kind of a tiny model to the model as transformers loads it."""


def random_ids(length: int, *, seed: int = 0) -> npt.NDArray[np.int32]:
    """Random ids inside the vocabulary of the tiny models."""
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length, dtype=np.int32)


def job(ids: npt.NDArray[np.int32], layers: tuple[int, ...], **fields: Any) -> HiddenJob:
    """A job for all positions in float32; `fields` override."""
    defaults: dict[str, Any] = {"final_norm": False, "start": 0, "stop": len(ids), "dtype": "float32"}
    return HiddenJob(token_ids=ids, layers=layers, **(defaults | fields))


def results(engine: TorchEngine, jobs: Sequence[HiddenJob]) -> list[HiddenResult]:
    """Results of one pass; a failed job fails the test."""
    found = []
    for outcome in engine.execute(jobs):
        assert isinstance(outcome, HiddenResult), outcome
        found.append(outcome)
    return found
