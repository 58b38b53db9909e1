"""Tiny seeded drafters: weights by canonical name, configurations, and the folders trainers would write of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Response
from safetensors.torch import save_file
from torch import Tensor

from kit.serve import SMALL_LIMITS
from tauscope_serving.answers import TensorResponse
from tauscope_serving.metrics import ServiceMetrics
from tauscope_serving.service import create_service
from tauscope_wire.errors import GoneError
from tauscope_wire.messages import ModelInfo, Numerics, TargetInfo
from tauscope_wire.writer import chunks_of, hidden_body

VOCAB, HIDDEN, TARGET_LAYERS = 96, 32, 6
TAPS = (1, 3, 4)
MASK = 7
BLOCK = 4

Tensors = dict[str, Tensor]


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Seeded weights: matrices that keep the scale of their input, norms near one."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for name in sorted(shapes):
        shape = shapes[name]
        values = torch.randn(shape, generator=generator)
        is_norm = len(shape) == 1 and "norm" in name
        tensors[name] = 1 + 0.2 * values if is_norm else values * (1.5 / shape[-1] ** 0.5)
    return tensors


def layer_shapes(hidden: int = HIDDEN, heads: int = 4, kv: int = 2, head_dim: int = 8, inner: int = 48) -> Any:
    """One Qwen3-style layer, written out by hand so that a wrong table in the package shows."""
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (heads * head_dim, hidden),
        "self_attn.k_proj.weight": (kv * head_dim, hidden),
        "self_attn.v_proj.weight": (kv * head_dim, hidden),
        "self_attn.o_proj.weight": (hidden, heads * head_dim),
        "self_attn.q_norm.weight": (head_dim,),
        "self_attn.k_norm.weight": (head_dim,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def dflash_tensors(seed: int = 0, layers: int = 2, **shape: int) -> Tensors:
    """All tensors of a z-lab DFlash file."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, len(TAPS) * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for i in range(layers):
        shapes |= {f"layers.{i}.{name}": s for name, s in layer_shapes(**shape).items()}
    return random_tensors(shapes, seed)


def dflash_config(layers: int = 2, **changes: Any) -> dict[str, Any]:
    """z-lab's configuration of `dflash_tensors`, in the old spelling; `changes` replace or (None) remove fields."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "num_target_layers": TARGET_LAYERS,
        "dflash_config": {"target_layer_ids": list(TAPS), "mask_token_id": MASK},
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "vocab_size": VOCAB,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "layer_types": ["full_attention"] * layers,
        "sliding_window": None,
    }
    config.update(changes)
    return {name: value for name, value in config.items() if value is not None or name == "rope_scaling"}


def write_folder(folder: Path, config: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> Path:
    """`config.json` and `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, folder / "model.safetensors")
    return folder


def shared_tables(seed: int = 99) -> Tensors:
    """The target's embedding and head, by canonical name."""
    return random_tensors({"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}, seed)


def write_target(folder: Path, *, model_type: str = "qwen3", tied: bool = False, prefix: str = "model.") -> Path:
    """A target's folder with the tensors that drafters share, and one decoder tensor that nobody may need."""
    tables = shared_tables()
    tensors = {
        f"{prefix}embed_tokens.weight": tables["embed_tokens.weight"],
        f"{prefix}norm.weight": 1 + 0.1 * torch.randn(HIDDEN, generator=torch.Generator().manual_seed(5)),
        f"{prefix}layers.0.input_layernorm.weight": torch.ones(HIDDEN),
    }
    if not tied:
        tensors["lm_head.weight"] = tables["lm_head.weight"]
    config = {
        "model_type": model_type,
        "num_hidden_layers": TARGET_LAYERS,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "eos_token_id": 3,
    }
    return write_folder(folder, config, tensors)


def random_sequence(length: int = 24, seed: int = 1, planes: int = len(TAPS)) -> tuple[Tensor, Tensor]:
    """Hidden states [planes, length, HIDDEN] and token ids [length]."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(planes, length, HIDDEN, generator=generator)
    return states, torch.randint(0, VOCAB, (length,), generator=generator)


NUMERICS = Numerics(
    revision="sha256:0",
    compute_dtype="float32",
    weights_dtype="float32",
    device="cpu",
    torch="2",
    transformers="5",
    attention="sdpa",
    weights_mode="cpu",
)
MODEL = ModelInfo(
    id="tiny",
    revision="sha256:0",
    config_sha256="0",
    num_layers=TARGET_LAYERS,
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    stop_token_ids=[3],
)


@dataclass
class StatesServer:
    """A target service without a model: `/info` and handles whose planes are given arrays.

    Attributes:
        states: canonical layer id -> [T, HIDDEN].
        token_ids: of the sequence behind every handle.
        served: handles served so far, in order.
        numerics: fingerprint it claims.
        model: what it says about its model.
    """

    states: Mapping[int, Tensor]
    token_ids: list[int]
    served: list[str] = field(default_factory=list)
    numerics: Numerics = NUMERICS
    model: ModelInfo = MODEL
    gone: set[str] = field(default_factory=set)

    def app(self) -> FastAPI:
        """The application, to be run with `kit.serve.running`."""
        app = create_service(
            "states", version="0", description="", metrics=ServiceMetrics("states"), not_ready=lambda: ()
        )

        @app.get("/info")
        async def info() -> TargetInfo:
            return TargetInfo(
                version="0",
                model=self.model,
                architecture="Tiny",
                layer_types=["full_attention"] * TARGET_LAYERS,
                numerics=self.numerics,
                mode="cpu",
                mode_cannot=[],
                limits=SMALL_LIMITS,
                self_tests=[],
                deepest_layer=TARGET_LAYERS - 1,
                dtypes=["bfloat16", "float32"],
                chat_template=False,
            )

        @app.get("/hidden_states/{handle}")
        async def hidden(handle: str, planes: str, start: int, stop: int) -> Response:
            if handle in self.gone:
                raise GoneError(f"handle {handle} is gone")
            self.served.append(handle)
            ids = [int(p) for p in planes.split(",")]
            states = np.stack([self.states[i][start:stop].numpy() for i in ids])
            body = hidden_body(
                request_id="r",
                model=self.model,
                numerics=self.numerics,
                requested={"convention": "output", "layers": ids},
                planes=ids,
                dtype="float32",
                token_ids=self.token_ids,
                positions=(start, stop),
                shape=(len(ids), stop - start, HIDDEN),
                handle=handle,
                chunks=chunks_of(states, start, max_rows=16),
                digest=None,
                logits=None,
                timing_ms={},
            )
            return TensorResponse(body, "r")

        return app
