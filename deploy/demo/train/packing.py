"""Packing: the files of a trained target or drafter, in the layouts that published models use, and an archive in
parts.
"""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from deploy.demo.train.chat import END_OF_TEXT, IM_END, MASK
from deploy.demo.train.drafter_training import Snapshot
from deploy.demo.train.networks.blocks import NORM_EPS
from deploy.demo.train.settings import VOCAB_SIZE, DrafterShape, TargetShape
from deploy.demo.train.tokenization import MAX_MODEL_TOKENS
from safetensors.torch import save_file
from torch import nn

OPTIMIZER_PARTS = ("hidden_norm", "norm.weight", "layers.0.self_attn.k_proj", "layers.0.self_attn.v_proj")
"""Parameters whose AdamW moments go into the training checkpoint: enough to show the structure, small enough for
git.
"""


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with a final line break, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def save_tensors(
    folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], *, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write ``model.safetensors`` and ``config.json``; floating-point tensors are stored in ``dtype``."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: (t.to(dtype) if t.is_floating_point() else t).detach().cpu().contiguous() for name, t in tensors.items()
    }
    save_file(stored, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_json(folder / "config.json", config)


def qwen3_fields(hidden: int, shape: DrafterShape) -> dict[str, Any]:
    """The Qwen3 part of a drafter's configuration."""
    return {
        "model_type": "qwen3",
        "num_hidden_layers": shape.layers,
        "hidden_size": hidden,
        "intermediate_size": shape.mlp,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": NORM_EPS,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "vocab_size": VOCAB_SIZE,
        "rope_theta": shape.theta,
        "rope_scaling": None,
        "max_position_embeddings": MAX_MODEL_TOKENS,
        "layer_types": ["full_attention"] * shape.layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": shape.layers,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def dflash_config(target: TargetShape, shape: DrafterShape) -> dict[str, Any]:
    """``config.json`` of a DFlash drafter as z-lab publishes it; layer ids are 0-based layer outputs."""
    return {
        "architectures": ["DFlashDraftModel"],
        "block_size": shape.block,
        "num_target_layers": target.layers,
        "dflash_config": {"target_layer_ids": list(shape.taps), "mask_token_id": MASK},
        **qwen3_fields(target.hidden, shape),
    }


def dspark_config(target: TargetShape, shape: DrafterShape, *, rank: int, num_anchors: int) -> dict[str, Any]:
    """``config.json`` of a DSpark drafter as DeepSpec writes it (flat; anchor-first by architecture)."""
    return {
        **qwen3_fields(target.hidden, shape),
        "architectures": ["Qwen3DSparkModel"],
        "block_size": shape.block,
        "num_target_layers": target.layers,
        "target_layer_ids": list(shape.taps),
        "mask_token_id": MASK,
        "num_anchors": num_anchors,
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def eagle3_config(target: TargetShape, shape: DrafterShape, *, draft_vocab: int) -> dict[str, Any]:
    """``config.json`` of an EAGLE-3 drafter; aux layer ids count the embedding output as 0, so they are canonical ids
    plus one.
    """
    return {
        **qwen3_fields(target.hidden, shape),
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": draft_vocab,
        "target_hidden_size": target.hidden,
        "eagle_aux_hidden_state_layer_ids": [i + 1 for i in shape.taps],
    }


def eagle3_tensors(network: nn.Module, draft_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of an EAGLE-3 file: the network and both vocabulary tables (``d2t`` holds offsets)."""
    is_drafted = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    is_drafted[draft_ids.cpu()] = True
    offsets = draft_ids.cpu() - torch.arange(len(draft_ids))
    return {**network.state_dict(), "d2t": offsets, "t2d": is_drafted}


def save_checkpoint(path: Path, early: Snapshot, embedding: torch.Tensor) -> None:
    """Write a snapshot as a plain training checkpoint (``torch.save``): weights, the frozen embedding and head, part
    of the optimizer state.

    Tensors are bfloat16 and shared where equal, so the embedding is stored once; `OPTIMIZER_PARTS` says whose moments
    are kept.
    """
    shared = embedding.detach().to("cpu", torch.bfloat16).clone()
    moments = {
        name: {key: value.to(torch.bfloat16) if value.ndim else value for key, value in state.items()}
        for name, state in early.optimizer.items()
        if any(part in name for part in OPTIMIZER_PARTS)
    }
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in early.weights.items()}
    state = {
        "model_state_dict": {
            **weights,
            "embed_tokens.weight": shared,
            "lm_head.weight": shared,
            "verifier_lm_head.weight": shared,
        },
        "optimizer_state_dict": {"state": moments, "param_groups": [{"params": sorted(moments)}]},
        "step": early.step,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


class PartWriter(io.RawIOBase):
    """A write-only stream cut into files of at most ``part_bytes``: ``NAME.000``, ``NAME.001``, .."""

    def __init__(self, base: Path, part_bytes: int) -> None:
        self._base, self._part_bytes = base, part_bytes
        self._parts: list[Path] = []
        self._room = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes, starting a new part whenever one is full."""
        view = memoryview(data)
        size = len(view)
        while view:
            if not self._room:
                self._parts.append(self._base.with_name(f"{self._base.name}.{len(self._parts):03d}"))
                self._parts[-1].write_bytes(b"")
                self._room = self._part_bytes
            with self._parts[-1].open("ab") as file:
                file.write(view[: self._room])
            written = min(self._room, len(view))
            self._room -= written
            view = view[written:]
        return size


def archive(paths: Sequence[Path], destination: Path, *, part_bytes: int) -> None:
    """Pack files and folders into ``destination.000`` and so on; ``cat destination.* | tar x`` unpacks. Written anew
    each time.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    for old in destination.parent.glob(destination.name + ".*"):
        old.unlink()
    with tarfile.open(fileobj=PartWriter(destination, part_bytes), mode="w|", bufsize=1 << 20) as tar:
        for path in paths:
            if path.exists():
                tar.add(path, arcname=path.name)
