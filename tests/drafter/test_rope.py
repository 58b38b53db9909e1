"""Rotary tables against Hugging Face's own functions, and the settings they are read from."""

from typing import Any

import pytest
import torch

from tauscope_drafter.network.rope import Rotary, inverse_frequencies
from tauscope_drafter.spec import RopeSpec

CASES: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("linear", {"factor": 4.0}),
    ("yarn", {"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}),
    ("yarn", {"factor": 16.0, "original_max_position_embeddings": 4096, "attention_factor": 1.25}),
    ("yarn", {"factor": 8.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.5}),
    (
        "llama3",
        {
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
]


@pytest.mark.parametrize(("kind", "parameters"), CASES, ids=[f"{k}-{i}" for i, (k, _) in enumerate(CASES)])
def test_frequencies_equal_those_of_the_reference_library(kind: str, parameters: dict[str, Any]) -> None:
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": kind, "rope_theta": 10000.0, **parameters}
    config = Qwen3Config(hidden_size=64, num_attention_heads=4, head_dim=64, rope_parameters=rope)
    ours, factor = inverse_frequencies(RopeSpec(10000.0, 64, kind, parameters))  # type: ignore[arg-type]
    if kind == "default":
        torch.testing.assert_close(ours, 10000.0 ** -(torch.arange(0, 64, 2) / 64))
        assert factor == 1.0
        return
    theirs, their_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    torch.testing.assert_close(ours, theirs)
    assert factor == pytest.approx(their_factor)


def test_scores_depend_on_the_distance_only() -> None:
    rotary = Rotary(RopeSpec(10000.0, 16), torch.device("cpu"), torch.float32)
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))

    def score(i: int, j: int) -> float:
        tables = [rotary.tables(torch.tensor(p)) for p in (i, j)]
        return float(rotary.rotate(q, tables[0]) @ rotary.rotate(k, tables[1]))

    assert score(5, 2) == pytest.approx(score(105, 102), abs=1e-4)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-4)


def test_a_partial_rotation_leaves_the_rest_of_the_head_alone() -> None:
    rotary = Rotary(RopeSpec(10000.0, 4), torch.device("cpu"), torch.float32)
    x = torch.randn(8, generator=torch.Generator().manual_seed(0))
    turned = rotary.rotate(x, rotary.tables(torch.tensor(3)))
    assert torch.equal(turned[4:], x[4:])
    assert not torch.allclose(turned[:4], x[:4])
