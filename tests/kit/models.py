"""Tiny models built from their configuration and saved as checkpoints: nothing is downloaded, weights are random.

Every function writes a complete checkpoint folder (config, generation config, safetensors, byte-level tokenizer with a
chat template) and returns its path. Weights are larger than a library's own initialisation, so that layers differ from
each other and the argmax is not a near-tie; the gated delta layers start as Mamba-2 does (dt 0.001 to 0.1), because the
library's own start forgets within a token or two and would hide a lost recurrent state.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

VOCAB_SIZE = 320
END_OF_TEXT, MASK, IM_START, IM_END = 0, 1, 2, 3
SPECIAL_TOKENS = ("<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking is defined and thinking %}(thinking)\n"
    "{% endif %}{% endif %}"
)

HYBRID_FIELDS: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "pad_token_id": END_OF_TEXT,
    "eos_token_id": IM_END,
    "initializer_range": 0.02,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}

DENSE_FIELDS: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "pad_token_id": END_OF_TEXT,
    "bos_token_id": None,
    "eos_token_id": IM_END,
}


MIXTURE_FIELDS: Mapping[str, Any] = {
    **DENSE_FIELDS,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
"""A mixture of experts, fused while it is loaded."""
GPU_FIELDS: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 32_768,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
"""Heads that GPU kernels take, for a hybrid that is still small."""


def tiny_hybrid(directory: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **fields: Any) -> Path:
    """A Qwen3.5 text checkpoint: linear, linear, linear, full attention, twice; one safetensors file."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**HYBRID_FIELDS, **fields}))
        randomise(model)
    return save(model.to(dtype), directory)


def tiny_vision_hybrid(directory: Path, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16, **fields: Any) -> Path:
    """A vision-language Qwen3.5 checkpoint as published: sharded, with a vision tower and an MTP head.

    Keys are `model.language_model.*`, `model.visual.*`, `mtp.*` and `lm_head.weight`, over three or more shards.
    """
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text = {**HYBRID_FIELDS, **fields}
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 4,
        "num_position_embeddings": 16,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=text["tie_word_embeddings"])
        config.eos_token_id = IM_END
        model = Qwen3_5ForConditionalGeneration(config)
        randomise(model)
        hidden = text["hidden_size"]
        mtp = {
            "mtp.fc.weight": torch.randn(hidden, 2 * hidden).to(dtype),
            "mtp.norm.weight": torch.ones(hidden, dtype=dtype),
            "mtp.layers.0.mlp.up_proj.weight": torch.randn(text["intermediate_size"], hidden).to(dtype),
        }
    save(model.to(dtype), directory, max_shard_size="400KB")
    _add_shard(directory, mtp)
    return directory


def tiny_qwen3(directory: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **fields: Any) -> Path:
    """A Qwen3 checkpoint: six full-attention layers, tied embeddings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**{**DENSE_FIELDS, **fields}))
        randomise(model)
    return save(model.to(dtype), directory)


def tiny_llama(directory: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **fields: Any) -> Path:
    """A Llama checkpoint: six full-attention layers, untied head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**{**DENSE_FIELDS, "tie_word_embeddings": False, **fields}))
        randomise(model)
    return save(model.to(dtype), directory)


def randomise(model: torch.nn.Module) -> None:
    """Draw weights large enough that every layer matters: fan-in scaling, norms near one, slow decay."""
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        with torch.no_grad():
            if leaf == "A_log":
                parameter.copy_(torch.log(torch.empty_like(parameter).uniform_(1, 16)))
            elif leaf == "dt_bias":
                dt = torch.exp(torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(1e-1)))
                parameter.copy_(dt + torch.log(-torch.expm1(-dt)))  # inverse of softplus
            elif parameter.ndim >= 2:
                fan_in = parameter[0].numel()
                scale = 1.0 if "embed" in name else 1.5 / math.sqrt(fan_in)
                parameter.normal_(0.0, scale)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))


def save(model: Any, directory: Path, *, max_shard_size: str = "5GB") -> Path:
    """Save model, generation config (two stop ids) and tokenizer; returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = [IM_END, END_OF_TEXT]
    model.generation_config.pad_token_id = END_OF_TEXT
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer: four special tokens, then one id per byte; no merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        mask_token="<|mask|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)


def checkpoint_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint folder by name, from all its shards."""
    return {
        name: tensor for file in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }


def rewrite(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Replace the weights of a checkpoint folder by `tensors`, in one file."""
    for file in (*directory.glob("*.safetensors"), *directory.glob("*.safetensors.index.json")):
        file.unlink()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")


def _add_shard(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    index_path = directory / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    name = "model-mtp.safetensors"
    save_file(dict(tensors), directory / name)
    index["weight_map"].update(dict.fromkeys(tensors, name))
    index_path.write_text(json.dumps(index))
