"""A golden capture: what a machine gives for a few prompts, to compare another machine with.

One safetensors file. Metadata: `schema` (`tauscope.golden/1`) and `facts`, a JSON map of `model` (ModelInfo),
`numerics` (the fingerprint), `layers` (canonical ids of the planes), `dtype`, `noise_floor` (or null) and `prompts`
(their number).
Tensors, for each prompt i: `prompt.<i>.token_ids` int32 [T], `prompt.<i>.states` [P, T, H], and `prompt.<i>.argmax_ids`
int32 [T] where the head is loaded.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tauscope_target.jobs import Engine, HiddenJob, HiddenResult, LogitsSpec, Tokens
from tauscope_target.tensor_file import write_tensors
from tauscope_wire.errors import RequestError

SCHEMA = "tauscope.golden/1"
MAX_PROMPT_TOKENS = 512
PROMPTS = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n",
    "Write a Python function that merges two sorted lists into one sorted list, and explain its running time.",
    "SELECT name, COUNT(*) AS orders FROM customers JOIN orders USING (customer) GROUP BY name ORDER BY 2 DESC;",
    "Die Donau fliesst durch zehn Länder, bevor sie in das Schwarze Meer mündet. " * 6,
)
"""Code, prose, a query, another language; short ones and one of several blocks of the linear-attention kernels."""


def golden_prompts(tokens: Tokens | None, vocab_size: int) -> list[npt.NDArray[np.int32]]:
    """Token ids of the prompts; a checkpoint without tokenizer gets random ids, always the same."""
    if tokens is None:
        random = np.random.default_rng(0)
        return [random.integers(0, vocab_size, length, dtype=np.int32) for length in (40, 97, 200)]
    return [np.asarray(tokens.encode(text)[:MAX_PROMPT_TOKENS], np.int32) for text in PROMPTS]


def write_golden(
    engine: Engine, prompts: Sequence[npt.NDArray[np.int32]], file: Path, *, layers: Sequence[int]
) -> None:
    """Capture and write.

    Args:
        engine: a started engine.
        prompts: int32 ids, one array a prompt.
        file: where to write; it appears complete or not at all.
        layers: canonical ids of the planes.

    Raises:
        RequestError: a layer that is not loaded.
        OSError: the file cannot be written.
    """
    facts = engine.facts
    for index, layer in enumerate(layers):
        if not -1 <= layer <= facts.deepest_layer:
            raise RequestError(f"--layers [{index}]={layer}: loaded are -1..{facts.deepest_layer}")
    dtype = facts.dtypes[-1]
    arrays: dict[str, npt.NDArray[Any]] = {}
    for index, ids in enumerate(prompts):
        logits = LogitsSpec(0, next_token=False) if facts.has_head else None
        job = HiddenJob(ids, tuple(layers), False, 0, len(ids), dtype, logits)
        (outcome,) = engine.execute([job])  # alone: a golden row must not depend on its company
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, HiddenResult)
        arrays[f"prompt.{index}.token_ids"] = ids
        arrays[f"prompt.{index}.states"] = outcome.states
        if outcome.logits is not None:
            arrays[f"prompt.{index}.argmax_ids"] = outcome.logits.argmax_ids
    described = {
        "model": facts.model.model_dump(mode="json"),
        "numerics": facts.numerics.model_dump(mode="json"),
        "layers": list(layers),
        "dtype": dtype,
        "noise_floor": facts.noise_floor,
        "prompts": len(prompts),
    }
    write_tensors(file, arrays, {"schema": SCHEMA, "facts": json.dumps(described)})
