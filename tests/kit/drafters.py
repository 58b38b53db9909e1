"""Tiny seeded drafters: weights by canonical name, configurations, and the folders trainers would write of them."""

import asyncio
import json
import threading
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


GATE_TIMEOUT_S = 60.0
"""A bound, not a wait: tests open the gate."""


def _open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


@dataclass
class StatesServer:
    """A target service without a model: `/info` and handles whose planes are given arrays.

    Attributes:
        states: canonical layer id, or `final_norm` -> [T, HIDDEN].
        token_ids: of the sequence behind every handle.
        served: handles served so far, in order.
        numerics: fingerprint it claims.
        model: what it says about its model.
        gone: handles that answer 410.
        entered: set when a handle is asked for.
        gate: handles are answered only while it is set.
    """

    states: Mapping[int | str, Tensor]
    token_ids: list[int]
    served: list[str] = field(default_factory=list)
    numerics: Numerics = NUMERICS
    model: ModelInfo = MODEL
    gone: set[str] = field(default_factory=set)
    entered: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=_open_gate)

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
            self.entered.set()
            await asyncio.to_thread(self.gate.wait, GATE_TIMEOUT_S)
            if handle in self.gone:
                raise GoneError(f"handle {handle} is gone")
            self.served.append(handle)
            ids: list[int | str] = [p if p == "final_norm" else int(p) for p in planes.split(",")]
            states = np.stack([self.states[i][start:stop].numpy() for i in ids])
            body = hidden_body(
                request_id="r",
                model=self.model,
                numerics=self.numerics,
                requested={"convention": "output", "layers": [i for i in ids if i != "final_norm"]},
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


def dspark_tensors(kind: str = "vanilla", *, rank: int = 6, confidence: bool = True, seed: int = 0) -> Tensors:
    """A DFlash backbone with the Markov head of DeepSpec."""
    shapes: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (VOCAB, rank),
        "markov_head.markov_w2.weight": (VOCAB, rank),
    }
    if kind == "gated":
        shapes |= {"markov_head.gate_proj.weight": (rank, HIDDEN + rank), "markov_head.gate_proj.bias": (rank,)}
    if kind == "rnn":
        shapes |= {
            "markov_head.joint_proj.weight": (3 * rank, 2 * rank + HIDDEN),
            "markov_head.joint_proj.bias": (3 * rank,),
        }
    if confidence:
        shapes |= {"confidence_head.proj.weight": (1, HIDDEN + rank), "confidence_head.proj.bias": (1,)}
    return dflash_tensors(seed) | random_tensors(shapes, seed + 1)


def dspark_config(kind: str = "vanilla", **changes: Any) -> dict[str, Any]:
    """DeepSpec's flat configuration."""
    flat = {
        "architectures": ["Qwen3DSparkModel"],
        "dflash_config": None,
        "target_layer_ids": list(TAPS),
        "mask_token_id": MASK,
        "num_anchors": 512,
        "markov_rank": 6,
        "markov_head_type": kind,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    return dflash_config(**(flat | changes))


def domino_tensors(*, state: int = 10, narrow: int = 6, seed: int = 0) -> Tensors:
    """A DFlash backbone with Domino's GRU and correction."""
    shapes = {
        "prefix_gru.weight_ih_l0": (3 * state, HIDDEN),
        "prefix_gru.weight_hh_l0": (3 * state, state),
        "embed_proj.0.weight": (narrow, HIDDEN + state),
        "embed_proj.2.weight": (VOCAB, narrow),
    }
    return dflash_tensors(seed) | random_tensors(shapes, seed + 1)


def domino_config(*, shift_label: bool, pure: int = 1) -> dict[str, Any]:
    """Domino's settings inside `dflash_config`."""
    nested = {
        "target_layer_ids": list(TAPS),
        "mask_token_id": MASK,
        "projector_type": "domino",
        "pure_draft_prefix_len": pure,
        "shift_label": shift_label,
        "gru_hidden_dim": 10,
        "emb_dim": 6,
    }
    return dflash_config(dflash_config=nested)


def dflash2_tensors(*, kernel: int = 2, group: int = 4, rank: int = 6, seed: int = 0) -> Tensors:
    """DFlash with short convolutions and a candidate selector."""
    shapes: dict[str, tuple[int, ...]] = {
        "candidate_selector.predecessor_codebook": (VOCAB, rank),
        "candidate_selector.successor_codebook": (VOCAB, rank),
        "candidate_selector.hidden_projection.weight": (rank, HIDDEN),
    }
    for i in range(2):
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{i}.{name}.base_kernel"] = (2, kernel, HIDDEN)
            shapes[f"layers.{i}.{name}.kernel_projection.weight"] = (2 * kernel * (HIDDEN // group), HIDDEN)
    return dflash_tensors(seed) | random_tensors(shapes, seed + 1)


def dflash2_config(**changes: Any) -> dict[str, Any]:
    """As released: all layers slide and are not causal."""
    released = {
        "architectures": ["DFlash2DraftModel"],
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 9,
        "is_causal": False,
        "conv_kernel_size": 2,
        "conv_group_size": 4,
        "selector_top_k": 7,
        "selector_rank": 6,
    }
    return dflash_config(**(released | changes))


def eagle_layer_shapes(width: int, heads: int = 4, kv: int = 2, head_dim: int = 8, inner: int = 48) -> Any:
    """One Llama-style layer (no norms of queries and keys) that reads rows of `width`."""
    shapes = layer_shapes(HIDDEN, heads, kv, head_dim, inner)
    for name in ("q_proj", "k_proj", "v_proj"):
        shapes[f"self_attn.{name}.weight"] = (shapes[f"self_attn.{name}.weight"][0], width)
    del shapes["self_attn.q_norm.weight"], shapes["self_attn.k_norm.weight"]
    return shapes


def eagle3_tensors(*, layers: int = 1, draft_vocab: int = 40, seed: int = 0, own_head: bool = True) -> Tensors:
    """EAGLE-3 under the reference's names (`midlayer`), with a cut vocabulary; more layers for P-EAGLE."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, len(TAPS) * HIDDEN),
        "norm.weight": (HIDDEN,),
        "midlayer.hidden_norm.weight": (HIDDEN,),
    }
    shapes |= {f"midlayer.{name}": s for name, s in eagle_layer_shapes(2 * HIDDEN).items()}
    for i in range(1, layers):
        shapes |= {f"layers.{i}.{name}": s for name, s in eagle_layer_shapes(HIDDEN).items()}
    if layers > 1:
        shapes["mask_hidden"] = (1, 1, len(TAPS) * HIDDEN)
    if own_head:
        shapes["lm_head.weight"] = (draft_vocab, HIDDEN)
    tensors = random_tensors(shapes, seed)
    if draft_vocab < VOCAB:
        ids = draft_ids(draft_vocab)
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, value=True)
    return tensors


def draft_ids(count: int) -> Tensor:
    """Ascending target ids of a cut vocabulary."""
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:count].sort().values


def eagle3_config(layers: int = 1, **changes: Any) -> dict[str, Any]:
    """A Llama-style configuration of an EAGLE drafter."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "draft_vocab_size": 40,
        "rope_theta": 10000.0,
    }
    config.update(changes)
    return {name: value for name, value in config.items() if value is not None}


def mtp_tensors(seed: int = 0) -> Tensors:
    """An MTP head under the names of a target's checkpoint; norms are stored as w of 1 + w."""
    layer = layer_shapes()
    layer["self_attn.q_proj.weight"] = (2 * 32, HIDDEN)
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        "mtp.pre_fc_norm_embedding.weight": (HIDDEN,),
        "mtp.pre_fc_norm_hidden.weight": (HIDDEN,),
        "mtp.norm.weight": (HIDDEN,),
    }
    shapes |= {f"mtp.layers.0.{name}": s for name, s in layer.items()}
    tensors = random_tensors(shapes, seed)
    return {name: t - 1 if t.ndim == 1 else t for name, t in tensors.items()}


# --- the same weights, as different trainers write them -----------------------------------------------------


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config.get("dflash_config") or {})


def _speculators(config: Mapping[str, Any], family: str, **top: Any) -> dict[str, Any]:
    inner = {k: v for k, v in config.items() if k not in ("block_size", "num_target_layers", "dflash_config")}
    nested = _nested(config)
    taps = nested.pop("target_layer_ids", None) or config["target_layer_ids"]
    mask = nested.pop("mask_token_id", None) or config["mask_token_id"]
    return {
        "speculators_model_type": family,
        "architectures": ["DFlashDraftModel"],
        "transformer_layer_config": inner,
        "draft_vocab_size": VOCAB,
        "block_size": config["block_size"],
        "target_hidden_size": HIDDEN,
        "aux_hidden_state_layer_ids": [t + 1 for t in taps],
        "mask_token_id": mask,
        "speculators_config": {
            "algorithm": family,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config["block_size"] - 1}],
        },
        **top,
    }


def fuse_projections(tensors: Mapping[str, Tensor]) -> Tensors:
    """Engines' fused names: qkv_proj (rows q, k, v) and gate_up_proj."""
    fused = dict(tensors)
    for name in [n for n in tensors if n.endswith("q_proj.weight")]:
        parts = [fused.pop(name.replace("q_proj", p)) for p in ("q_proj", "k_proj", "v_proj")]
        fused[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    for name in [n for n in tensors if n.endswith("gate_proj.weight") and ".mlp." in n]:
        fused[name.replace("gate_proj", "gate_up_proj")] = torch.cat(
            [fused.pop(name), fused.pop(name.replace("gate_proj", "up_proj"))]
        )
    return fused


def write_state(folder: Path, name: str, config: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
    """A pickled file of a trainer with its configuration beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(dict(state), folder / name)
    return folder / name


def write_dflash(folder: Path, format_: str) -> Path:
    """The weights of `dflash_tensors()` in one of `DFLASH_FORMATS`; gives the path to load."""
    tensors, config, tables = dflash_tensors(), dflash_config(), shared_tables()
    folder.mkdir(parents=True, exist_ok=True)
    if format_ == "z-lab-new":
        nested = _nested(config) | {"block_size": BLOCK}
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        changes = {"dflash_config": nested, "block_size": None, "rope_theta": None, "rope_parameters": rope}
        return write_folder(folder, dflash_config(**changes), tensors)
    if format_ == "speculators":
        own = _speculators(config, "dflash", sample_from_anchor=False, sliding_window_non_causal=False)
        extra = {"verifier_lm_head.weight": torch.zeros(VOCAB, HIDDEN), "verifier_norm.weight": torch.zeros(HIDDEN)}
        return write_folder(folder, own, tensors | tables | extra)
    if format_ == "specforge":
        (folder / "config.json").write_text(json.dumps(config))
        state = {"draft_state_dict": tensors, "global_step": 9, "epoch": 1, "strategy": "dflash", "world_size": 1}
        torch.save(state, folder / "training_state.pt")
        torch.save({"optimizer": {}, "rng": 0}, folder / "training_state_rank0.pt")
        return folder
    if format_ == "specforge-export":  # save_pretrained: z-lab's names, and where to find the class
        own = dflash_config(auto_map={"AutoModel": "dflash.DFlashDraftModel"}, torch_dtype="float32")
        return write_folder(folder, own, tensors)
    if format_ == "torchspec":
        renamed = {"fc.": "context_proj.", "hidden_norm.": "context_norm.", "norm.": "final_norm."}
        flat = {}
        for name, tensor in tensors.items():
            start = next((s for s in renamed if name.startswith(s)), None)
            flat[name if start is None else renamed[start] + name.removeprefix(start)] = tensor
        own = dflash_config(block_size=None, dflash_config=None, num_target_layers=len(TAPS), model_type="dflash")
        own |= {"target_num_hidden_layers": TARGET_LAYERS, "target_hidden_size": HIDDEN}
        own |= {"target_layer_ids": list(TAPS), "mask_token_id": MASK}
        (folder / "config.json").write_text(json.dumps(own))
        torch.save(flat | {"embed_tokens.weight": tables["embed_tokens.weight"]}, folder / "draft.pt")
        return folder / "draft.pt"
    if format_ == "modelopt":
        return write_folder(folder, config, {f"dflash_module.{name}": t for name, t in tensors.items()})
    if format_ == "deepspec":
        own = dflash_config(dflash_config=None, target_layer_ids=list(TAPS), mask_token_id=MASK, num_anchors=512)
        return write_folder(folder, own, tensors | tables)
    if format_ == "training-checkpoint":
        wrapped = {f"module._orig_mod.draft_model.{name}": t for name, t in (tensors | tables).items()}
        state = {"model_state_dict": wrapped, "optimizer_state_dict": {"state": {0: torch.ones(3)}}, "step": 5}
        torch.save(state, folder / "checkpoint.pt")
        return folder / "checkpoint.pt"
    if format_ == "fused":
        return write_folder(folder, config, fuse_projections(tensors))
    if format_ == "sharded":
        names = sorted(tensors)
        index = {}
        for part, chunk in enumerate((names[:10], names[10:])):
            save_file({n: tensors[n].contiguous() for n in chunk}, folder / f"model-{part}.safetensors")
            index |= dict.fromkeys(chunk, f"model-{part}.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        (folder / "config.json").write_text(json.dumps(config))
        return folder
    if format_ == "pytorch-bin":
        (folder / "config.json").write_text(json.dumps(config))
        torch.save({f"model.{name}": t for name, t in tensors.items()}, folder / "pytorch_model.bin")
        return folder
    return write_folder(folder, config, tensors)


DFLASH_FORMATS = (
    "z-lab",
    "z-lab-new",
    "speculators",
    "specforge",
    "specforge-export",
    "torchspec",
    "modelopt",
    "deepspec",
    "training-checkpoint",
    "fused",
    "sharded",
    "pytorch-bin",
)


def write_dspark(folder: Path, format_: str) -> Path:
    """The weights of `dspark_tensors("gated")` in one of `DSPARK_FORMATS`."""
    tensors, config = dspark_tensors("gated"), dspark_config("gated")
    folder.mkdir(parents=True, exist_ok=True)
    if format_ == "speculators":
        own = _speculators(config, "dspark", sample_from_anchor=True, markov_rank=6, markov_head_type="gated")
        own["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = BLOCK
        return write_folder(folder, own, tensors | shared_tables())
    if format_ == "modelopt":
        moved = {
            name.removeprefix("markov_head.").replace("confidence_head.proj.", "confidence_proj."): t
            for name, t in tensors.items()
        }
        nested = {"target_layer_ids": list(TAPS), "mask_token_id": MASK, "shift_label": True}
        own = dflash_config(dflash_config=nested, use_confidence_head=True)
        return write_folder(folder, own, moved)
    if format_ == "specforge":
        nested = {"target_layer_ids": list(TAPS), "mask_token_id": MASK, "markov_rank": 6}
        (folder / "config.json").write_text(json.dumps(dflash_config(dflash_config=nested)))
        torch.save({"draft_state_dict": tensors, "strategy": "dspark"}, folder / "training_state.pt")
        return folder
    if format_ == "specforge-export":  # normalised: DeepSpec's architecture, Markov fields at the top
        nested = {"target_layer_ids": list(TAPS), "mask_token_id": MASK}
        markov = {"markov_rank": 6, "markov_head_type": "gated"}
        own = dflash_config(architectures=["Qwen3DSparkModel"], dflash_config=nested, **markov)
        return write_folder(folder, own, tensors)
    if format_ == "training-checkpoint":
        flagged = dflash_config(
            dflash_config={"target_layer_ids": list(TAPS), "mask_token_id": MASK, "sample_from_anchor": True}
        )
        return write_state(folder, "last.pt", flagged, {"model": {f"module.{n}": t for n, t in tensors.items()}})
    return write_folder(folder, config, tensors)


DSPARK_FORMATS = ("deepspec", "speculators", "modelopt", "specforge", "specforge-export", "training-checkpoint")


def write_eagle3(folder: Path, format_: str) -> Path:
    """The weights of `eagle3_tensors()` in one of `EAGLE3_FORMATS`."""
    tensors = eagle3_tensors()
    if format_ == "speculators":
        moved = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
        own = _speculators(
            eagle3_config(block_size=4, mask_token_id=MASK, target_layer_ids=list(TAPS)), "eagle3", draft_vocab_size=40
        )
        own |= {"norm_before_residual": False, "mask_token_id": None}
        for name in ("target_layer_ids", "mask_token_id", "draft_vocab_size"):
            own["transformer_layer_config"].pop(name)
        return write_folder(folder, own, moved)
    if format_ == "only-d2t":
        return write_folder(folder, _engine_ids(), {n: t for n, t in tensors.items() if n != "t2d"})
    if format_ == "only-t2d":
        return write_folder(folder, _engine_ids(), {n: t for n, t in tensors.items() if n != "d2t"})
    if format_ == "specforge":
        state = {"draft_state_dict": tensors, "global_step": 9, "strategy": "eagle3", "world_size": 1}
        write_state(folder, "training_state.pt", _engine_ids(), state)
        return folder
    if format_ == "specforge-export":
        return write_folder(folder, _engine_ids() | {"torch_dtype": "float32", "tie_word_embeddings": False}, tensors)
    if format_ == "training-checkpoint":
        wrapped = {f"module.{name}": t for name, t in tensors.items()}
        return write_state(folder, "last.pt", _engine_ids(), {"model_state_dict": wrapped, "step": 5})
    return write_folder(folder, _engine_ids(), tensors)


def _engine_ids() -> dict[str, Any]:
    return eagle3_config(eagle_aux_hidden_state_layer_ids=[t + 1 for t in TAPS])


EAGLE3_FORMATS = (
    "eagle",
    "speculators",
    "specforge",
    "specforge-export",
    "training-checkpoint",
    "only-d2t",
    "only-t2d",
)


def write_domino(folder: Path, format_: str) -> Path:
    """The weights of `domino_tensors()` in one of `DOMINO_FORMATS`."""
    tensors, config = domino_tensors(), domino_config(shift_label=False)
    folder.mkdir(parents=True, exist_ok=True)
    if format_ == "specforge":
        (folder / "config.json").write_text(json.dumps(config))
        torch.save({"draft_state_dict": tensors, "strategy": "domino"}, folder / "training_state.pt")
        return folder
    if format_ == "modelopt":
        return write_folder(folder, config, {f"dflash_module.{name}": t for name, t in tensors.items()})
    if format_ == "specforge-export":
        return write_folder(folder, config | {"auto_map": {"AutoModel": "domino.DominoDraftModel"}}, tensors)
    if format_ == "training-checkpoint":
        return write_state(folder, "last.pt", config, {"net": tensors, "epoch": 1})
    return write_folder(folder, config, tensors)


DOMINO_FORMATS = ("z-lab", "specforge", "specforge-export", "modelopt", "training-checkpoint")


def write_dflash2(folder: Path, format_: str, **changes: Any) -> Path:
    """The weights of `dflash2_tensors()` in one of `DFLASH2_FORMATS`."""
    tensors, config = dflash2_tensors(), dflash2_config(**changes)
    if format_ == "speculators":
        extras = {name: config.pop(name) for name in list(config) if name.startswith(("conv_", "selector_"))}
        weights = {f"{name}.weight" if name.endswith("_codebook") else name: t for name, t in tensors.items()}
        return write_folder(folder, _speculators(config, "dflash2", **extras), weights | shared_tables())
    if format_ == "training-checkpoint":
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        torch.save({"state_dict": tensors, "epoch": 1}, folder / "last.ckpt")
        return folder / "last.ckpt"
    return write_folder(folder, config, tensors)


DFLASH2_FORMATS = ("z-lab", "speculators", "training-checkpoint")


def write_peagle(folder: Path, format_: str) -> Path:
    """The weights of `eagle3_tensors(layers=2)` in one of `PEAGLE_FORMATS`."""
    tensors = eagle3_tensors(layers=2)
    if format_ == "speculators":
        inner = eagle3_config(2, block_size=4, mask_token_id=5, target_layer_ids=list(TAPS))
        own = _speculators(inner, "peagle", draft_vocab_size=40, norm_before_residual=False)
        for name in ("target_layer_ids", "mask_token_id", "draft_vocab_size"):
            own["transformer_layer_config"].pop(name)
        return write_folder(folder, own, {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()})
    config = eagle3_config(2, pard_token=5, block_size=4, eagle_aux_hidden_state_layer_ids=[t + 1 for t in TAPS])
    if format_ == "specforge":
        write_state(folder, "training_state.pt", config, {"draft_state_dict": tensors, "strategy": "peagle"})
        return folder
    if format_ == "specforge-export":
        return write_folder(folder, config | {"torch_dtype": "float32"}, tensors)
    if format_ == "training-checkpoint":
        return write_state(folder, "last.pt", config, {"state_dict": tensors})
    return write_folder(folder, config, tensors)


PEAGLE_FORMATS = ("eagle", "speculators", "specforge", "specforge-export", "training-checkpoint")


def mtp_config() -> dict[str, Any]:
    """The target's configuration as far as its MTP head needs it."""
    return {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": TARGET_LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    }


def write_mtp(folder: Path, format_: str) -> Path:
    """The weights of `mtp_tensors()` in one of `MTP_FORMATS`."""
    tensors = mtp_tensors()
    if format_ == "speculators":
        renamed = {
            "mtp.fc.": "mtp_layers.0.input_proj.",
            "mtp.pre_fc_norm_embedding.": "mtp_layers.0.token_layernorm.",
            "mtp.pre_fc_norm_hidden.": "mtp_layers.0.hidden_layernorm.",
            "mtp.norm.": "mtp_layers.0.final_layernorm.",
            "mtp.layers.0.": "mtp_layers.0.",
        }
        moved = {}
        for name, tensor in tensors.items():
            start = next(s for s in renamed if name.startswith(s))
            moved[renamed[start] + name.removeprefix(start)] = tensor
        config = {"speculators_model_type": "mtp", "transformer_layer_config": mtp_config()}
        return write_folder(folder, config, moved | shared_tables())
    table = torch.ones(VOCAB, HIDDEN)
    return write_folder(
        folder, {"model_type": "qwen3_5", "text_config": mtp_config()}, tensors | {"model.embed_tokens.weight": table}
    )


MTP_FORMATS = ("target", "speculators")
