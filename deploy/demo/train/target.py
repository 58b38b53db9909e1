"""Targets: configurations of the two kinds, initialisation, and a faster forward for training.

Inference always runs the library's own code; `fast_training` swaps in equal mathematics with fewer kernels while a
step is captured.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from deploy.demo.train.chat import END_OF_TEXT, IM_END
from deploy.demo.train.settings import SEED, VOCAB_SIZE, TargetShape
from deploy.demo.train.tokenization import MAX_MODEL_TOKENS
from transformers import PreTrainedModel

ROPE_THETA = 10_000.0
DT_MIN, DT_MAX = 1e-3, 1e-1
"""Range of the gated delta layers' initial step sizes, log-uniform, as Mamba-2 does; the library's own values decay
far too fast.
"""
DECAY_MIN, DECAY_MAX = 1.0, 16.0


def library_module(kind: str) -> Any:
    """The transformers modeling module of a kind."""
    name = {"hybrid": "qwen3_5", "plain": "qwen3"}[kind]
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def build_config(shape: TargetShape) -> Any:
    """The transformers configuration of a target."""
    import transformers

    common = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": MAX_MODEL_TOKENS,
        "tie_word_embeddings": True,
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "bos_token_id": None,
    }
    if shape.kind == "plain":
        return transformers.Qwen3Config(**common, rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA})
    half = (
        shape.head_dim // 8
    )  # a quarter of the head rotates, as in the published models; the sections share half of that
    sections = [half // 3 + (i < half % 3) for i in range(3)]
    return transformers.Qwen3_5TextConfig(
        **common,
        linear_key_head_dim=shape.linear_head_dim,
        linear_value_head_dim=shape.linear_head_dim,
        linear_num_key_heads=shape.linear_key_heads,
        linear_num_value_heads=shape.linear_value_heads,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": ROPE_THETA,
            "partial_rotary_factor": 0.25,
            "mrope_section": sections,
            "mrope_interleaved": True,
        },
    )


def build_target(shape: TargetShape) -> PreTrainedModel:
    """A freshly initialised target in float32 on the CPU."""
    import transformers

    torch.manual_seed(SEED)
    factory = transformers.Qwen3_5ForCausalLM if shape.kind == "hybrid" else transformers.Qwen3ForCausalLM
    model: PreTrainedModel = factory(build_config(shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.mul_((2 * shape.layers) ** -0.5)
            elif name.endswith("A_log"):
                parameter.uniform_(DECAY_MIN, DECAY_MAX).log_()
            elif name.endswith("dt_bias"):
                step = torch.exp(torch.rand_like(parameter) * math.log(DT_MAX / DT_MIN) + math.log(DT_MIN))
                parameter.copy_(step + torch.log(-torch.expm1(-step)))  # inverse of softplus
    model.generation_config = transformers.GenerationConfig(
        do_sample=False, eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT
    )
    return model


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function below transformers' kernel-selecting decorators."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


@contextlib.contextmanager
def fast_training(kind: str, *, fla_kernels: bool, reference_delta_rule: bool = False) -> Iterator[None]:
    """Swap in training forms of norms, MLP, convolution and masks for one kind of target.

    Masks are dropped because rows are full and causal attention is the default; norms become one fused kernel; on a
    GPU, fla's activation and convolution kernels take the place of several small ones each.

    Args:
        kind: Kind of the target.
        fla_kernels: Whether fla's CUDA kernels may be used.
        reference_delta_rule: Use the library's reference implementation of the delta rule (slow), for a failed
            gradient check.
    """
    module = library_module(kind)
    prefix = "Qwen3_5" if kind == "hybrid" else "Qwen3"

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        weight = 1.0 + self.weight if kind == "hybrid" else self.weight
        eps = self.eps if hasattr(self, "eps") else self.variance_epsilon
        with torch.autocast(x.device.type, enabled=False):
            return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)

    classes: dict[str, Callable[..., Any]] = {f"{prefix}RMSNorm": norm}
    names: dict[str, Any] = {"create_causal_mask": lambda *_, **__: None}
    if fla_kernels:
        from fla.modules.activations import swiglu

        classes[f"{prefix}MLP"] = lambda self, x: self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
    if kind == "hybrid":
        names["create_recurrent_attention_mask"] = lambda *_, **__: None

        def gated_norm(self: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
            with torch.autocast(x.device.type, enabled=False):
                y = F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.variance_epsilon)
            return swiglu(gate.contiguous(), y) if fla_kernels else F.silu(gate) * y

        classes[f"{prefix}RMSNormGated"] = gated_norm
        if fla_kernels:
            from fla.modules.causal_conv1d import causal_conv1d

            def convolution(
                x: torch.Tensor, weight: torch.Tensor, bias: Any = None, activation: Any = None, **_: Any
            ) -> Any:
                return causal_conv1d(x.transpose(1, 2), weight.to(x.dtype), bias, activation=activation)[0].transpose(
                    1, 2
                )

            names["causal_conv1d_fn"] = convolution
        if reference_delta_rule:
            names["torch_chunk_gated_delta_rule"] = innermost(module.torch_chunk_gated_delta_rule)
    old_forwards = {name: getattr(module, name).forward for name in classes}
    old_names = {name: getattr(module, name) for name in names}
    for name, forward in classes.items():
        getattr(module, name).forward = forward
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, forward in old_forwards.items():
            getattr(module, name).forward = forward
        for name, value in old_names.items():
            setattr(module, name, value)
