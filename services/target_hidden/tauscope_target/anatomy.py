"""Finds the parts of a transformers causal language model: embedding, decoder layers, final norm, head."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tauscope_wire.errors import CheckpointError, ErrorCode

FINAL_NORM_NAMES = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")
CHUNKABLE_TYPES = frozenset({"full_attention", "linear_attention"})
"""Layer types whose state a cache carries from chunk to chunk exactly; sliding windows drop keys."""


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The parts of one model; modules are the model's own, not copies.

    Attributes:
        model: the causal language model.
        decoder: the module that owns `layers` and runs them.
        layers_path: name of the layer list in `model`, for example `model.layers`.
        layer_types: one of `full_attention`, `linear_attention`, ... per layer.
        head: the output projection, or None when it is not loaded.
        scale_logits: what the architecture does to the head's output (soft cap, multiplier).
        cache_keyword: name of the cache argument in this version of transformers.
        is_chunkable: whether every layer can take a sequence in chunks.
    """

    model: Any
    decoder: nn.Module
    layers_path: str
    embedding: Any
    final_norm: nn.Module
    head: Any
    layer_types: list[str]
    scale_logits: Callable[[torch.Tensor], torch.Tensor]
    cache_keyword: str
    is_chunkable: bool
    config: Any

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers."""
        layers = self.model.get_submodule(self.layers_path)
        assert isinstance(layers, nn.ModuleList)
        return layers


def dissect(model: Any, *, has_head: bool) -> Anatomy:
    """Find the parts of `model`.

    Raises:
        CheckpointError: not a decoder-only model of a known build (`checkpoint_unsupported`).
    """
    config = model.config.get_text_config()
    architecture = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise _unsupported(architecture, "it has an encoder; only decoder-only models are served")
    num_layers = int(config.num_hidden_layers)
    paths = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers and name.count(".") <= 2
    ]
    if len(paths) != 1:
        raise _unsupported(architecture, f"expected one list of {num_layers} decoder layers, found {paths or 'none'}")
    owner, _, _ = paths[0].rpartition(".")
    decoder = model.get_submodule(owner)
    norms = [name for name in FINAL_NORM_NAMES if isinstance(getattr(decoder, name, None), nn.Module)]
    if len(norms) != 1:
        raise _unsupported(architecture, f"expected one final norm, found {norms or 'none'}")
    types = list(getattr(config, "layer_types", None) or ["full_attention"] * num_layers)
    parameters = inspect.signature(decoder.forward).parameters
    is_sdpa = getattr(config, "_attn_implementation", "") in ("sdpa", "tauscope_sdpa")
    slides = bool(getattr(config, "sliding_window", None)) and getattr(config, "layer_types", None) is None
    return Anatomy(
        model=model,
        decoder=decoder,
        layers_path=paths[0],
        embedding=model.get_input_embeddings(),
        final_norm=getattr(decoder, norms[0]),
        head=model.get_output_embeddings() if has_head else None,
        layer_types=types,
        scale_logits=_logit_rule(config),
        cache_keyword="cache" if "cache" in parameters else "past_key_values",
        is_chunkable=is_sdpa and not slides and set(types) <= CHUNKABLE_TYPES,
        config=config,
    )


def _logit_rule(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What lies between head and logits: Gemma's soft cap, Cohere's multiplier, Granite's divisor."""
    cap = getattr(config, "final_logit_softcapping", None)
    multiplier = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)

    def rule(logits: torch.Tensor) -> torch.Tensor:
        if multiplier is not None:
            logits = logits * multiplier
        if divisor is not None:
            logits = logits / divisor
        return torch.tanh(logits / cap) * cap if cap is not None else logits

    return rule


def _unsupported(architecture: str, why: str) -> CheckpointError:
    return CheckpointError(f"{architecture} is not supported: {why}", ErrorCode.CHECKPOINT_UNSUPPORTED)
