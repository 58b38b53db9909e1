"""A description written back as a z-lab style configuration, so that a converted checkpoint reads as the original."""

from collections.abc import Mapping
from typing import Any

from tauscope_drafter.spec import DrafterSpec, Window
from tauscope_wire.errors import CheckpointError, ErrorCode

_ARCHITECTURES = {
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "domino": "DFlashDraftModel",
    "dspark": "Qwen3DSparkModel",
    "eagle3": "LlamaForCausalLMEagle3",
    "peagle": "LlamaForCausalLMEagle3",
}
# Our names of a family's numbers -> their names in configurations.
_EXTRAS: Mapping[str, Mapping[str, str]] = {
    "dflash": {},
    "dflash2": {"kernel": "conv_kernel_size", "group": "conv_group_size", "rank": "selector_rank"}
    | {"max_top_k": "selector_top_k"},
    "domino": {"state": "gru_hidden_dim", "narrow": "emb_dim", "pure": "pure_draft_prefix_len"},
    "dspark": {"rank": "markov_rank"},
    "eagle3": {"norm_before_residual": "norm_before_residual", "norm_output": "norm_output"},
    "peagle": {"norm_before_residual": "norm_before_residual", "norm_output": "norm_output"},
}


def zlab_config(spec: DrafterSpec, *, dtype: str) -> dict[str, Any]:
    """`config.json` of a converted checkpoint.

    Args:
        spec: the description.
        dtype: of the tensors, as configurations spell it.

    Raises:
        CheckpointError: the family has no such form (MTP heads are part of a target's checkpoint).
    """
    if spec.family not in _ARCHITECTURES:
        raise CheckpointError(
            f"a drafter of family {spec.family} has no checkpoint of its own to convert",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    c = spec.layers
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[spec.family]],
        "model_type": "qwen3",
        "block_size": spec.block_size,
        "num_target_layers": spec.target_num_layers,
        "num_hidden_layers": c.num_layers,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.norm_eps,
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "tie_word_embeddings": False,
        "rope_theta": c.rope.theta,
        "rope_scaling": None if c.rope.kind == "default" else {"rope_type": c.rope.kind, **c.rope.parameters},
        "dtype": dtype,
        "training_numerics": None if spec.training_numerics is None else dict(spec.training_numerics),
    }
    named = {theirs: spec.extras[ours] for ours, theirs in _EXTRAS[spec.family].items()}
    if spec.family in ("eagle3", "peagle"):
        config |= {"eagle_aux_hidden_state_layer_ids": [t + 1 for t in spec.taps], "mask_token_id": spec.mask_token_id}
        config |= named
        if not spec.extras["head_norm"]:
            raise CheckpointError(
                "a drafter without a norm before its head cannot be written in this form",
                ErrorCode.CHECKPOINT_UNSUPPORTED,
            )
    else:
        config["dflash_config"] = {
            "target_layer_ids": list(spec.taps),
            "mask_token_id": spec.mask_token_id,
            "sample_from_anchor": spec.layout == "anchor-first",
            "input_embedding_scale": spec.embedding_scale,
            "output_multiplier": spec.output_multiplier,
            "final_logit_softcapping": spec.logit_softcap,
            **named,
        }
        config |= _windows(c.windows)
    return {name: value for name, value in config.items() if value is not None}


def _windows(windows: tuple[Window, ...]) -> dict[str, Any]:
    """`layer_types`, `sliding_window` and `is_causal`; placement of the window per block is a word of our own."""
    sliding = [w for w in windows if w.size is not None]
    settings: dict[str, Any] = {
        "layer_types": ["full_attention" if w.size is None else "sliding_attention" for w in windows]
    }
    if sliding:
        settings["sliding_window"] = sliding[0].size
        if not sliding[0].per_row:
            settings["sliding_window_placement"] = "block"
    flags = {w.causal for w in windows}
    usual = all(w.causal == (w.size is not None) for w in windows)
    if not usual and len(flags) == 1:
        settings["is_causal"] = flags.pop()
    elif not usual:
        raise CheckpointError(
            "causality differs between layers in a way this form cannot say", ErrorCode.CHECKPOINT_UNSUPPORTED
        )
    return settings
