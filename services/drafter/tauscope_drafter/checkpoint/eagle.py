"""The description of EAGLE-3 and P-EAGLE drafters: switches, taps and number of drafts."""

from typing import Any

from tauscope_drafter.checkpoint.blocks import num_layers, read_eps, read_target_layers, read_vocabulary
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.checkpoint.rope import read_rope
from tauscope_drafter.spec import BackboneSpec, DrafterSpec, Window
from tauscope_wire.errors import CheckpointError, ErrorCode

_ENGINE_IDS = "eagle_aux_hidden_state_layer_ids"
_REFERENCE_TAPS = 3


def read_eagle_spec(facts: Facts, family: str) -> DrafterSpec:
    """Describe an EAGLE-type drafter.

    `extras`: `norm_before_residual`, `norm_output` (3.1: the normed output is fed back), `head_norm` (a norm before
    the head), `fc_norms`, `input_norm`, `fc_bias`, `qk_norm` (which optional tensors there are).

    Raises:
        CheckpointError: a number is missing, ambiguous, or contradicts the tensors.
    """
    own, options, shapes = facts.own, facts.options, facts.shapes
    backbone, warnings = _backbone(facts)
    taps, tap_warnings = _taps(facts)
    _, columns = facts.shape("fc.weight", 2)
    if columns % len(taps):
        raise CheckpointError(
            f"{facts.origin}: tensor fc.weight has {columns} columns, no multiple of the {len(taps)} taps {list(taps)}",
            ErrorCode.TENSOR_SHAPE,
        )
    vocab, cut = read_vocabulary(facts)
    mask = options.mask_token_id if options.mask_token_id is not None else own.integer("mask_token_id", "pard_token")
    drafts = _drafts(facts)
    norm_output = own.flag("norm_output")
    # One name, two meanings: SpecForge's false leaves out the norm before the head, speculators' true feeds back the
    # normed output (EAGLE 3.1).
    is_specforge = facts.format == "specforge"
    extras: dict[str, Any] = {
        "norm_before_residual": _norm_before_residual(facts),
        "norm_output": bool(norm_output) and not is_specforge,
        "head_norm": not (is_specforge and norm_output is False),
        "fc_norms": "fc_norm.0.weight" in shapes,
        "input_norm": "input_norm.weight" in shapes,
        "fc_bias": "fc.bias" in shapes,
        "qk_norm": "layers.0.self_attn.q_norm.weight" in shapes,
    }
    return DrafterSpec(
        family=family,
        format=facts.format,
        layout="sequential",
        block_size=drafts + 1,
        drafts=drafts,
        taps=taps,
        mask_token_id=mask,
        vocab_size=vocab,
        draft_vocab_size=cut,
        target_hidden_size=columns // len(taps),
        target_num_layers=read_target_layers(facts),
        backbone=backbone,
        output_multiplier=own.number("logit_scale") or 1.0,
        extras=extras,
        training_numerics=own.find("training_numerics", "numerics"),
        warnings=(*warnings, *tap_warnings),
    )


def _backbone(facts: Facts) -> tuple[BackboneSpec, tuple[str, ...]]:
    net, at = facts.network, "layers.0.self_attn"
    hidden, _ = facts.shape("fc.weight", 2)
    q_rows, q_width = facts.shape(f"{at}.q_proj.weight", 2)
    kv_rows, _ = facts.shape(f"{at}.k_proj.weight", 2)
    inner, _ = facts.shape("layers.0.mlp.gate_proj.weight", 2)
    if q_width != 2 * hidden:
        raise CheckpointError(
            f"{facts.origin}: tensor {at}.q_proj.weight reads rows of width {q_width}, expected {2 * hidden} "
            "(embedding and state side by side)",
            ErrorCode.TENSOR_SHAPE,
        )
    heads = net.integer("num_attention_heads")
    if heads is None:
        raise missing("num_attention_heads", "config", "PATH (a config.json that has it)", facts.origin)
    head_dim = net.integer("head_dim") or q_rows // heads
    if heads * head_dim != q_rows or kv_rows % head_dim:
        raise CheckpointError(
            f"{facts.origin}: tensors {at}.q_proj.weight and k_proj.weight have {q_rows} and {kv_rows} rows; "
            f"{heads} heads of size {head_dim} do not fit",
            ErrorCode.TENSOR_SHAPE,
        )
    rope, rope_warnings = read_rope(facts, head_dim)
    eps, eps_warnings = read_eps(facts)
    layers = num_layers(facts)
    backbone = BackboneSpec(
        hidden_size=facts.agree("hidden_size", net.integer("hidden_size"), hidden, "fc.weight"),
        intermediate_size=facts.agree(
            "intermediate_size", net.integer("intermediate_size"), inner, "layers.0.mlp.gate_proj.weight"
        ),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=facts.agree(
            "num_key_value_heads", net.integer("num_key_value_heads"), kv_rows // head_dim, f"{at}.k_proj.weight"
        ),
        head_dim=head_dim,
        norm_eps=eps,
        windows=(Window(causal=True),) * layers,
        rope=rope,
        attention_bias=f"{at}.q_proj.bias" in facts.shapes,
    )
    return backbone, (*rope_warnings, *eps_warnings)


def _taps(facts: Facts) -> tuple[tuple[int, ...], tuple[str, ...]]:
    given = facts.options.canonical_taps()
    if given:
        return given, ()
    from_speculators = facts.own.integers("aux_hidden_state_layer_ids")
    if from_speculators:
        return tuple(t - 1 for t in from_speculators), ()
    listed = facts.own.integers(_ENGINE_IDS)
    if listed and facts.own.place(_ENGINE_IDS) != _ENGINE_IDS:
        shifted = ":".join(str(t - 1) for t in listed)
        raise CheckpointError(
            f"{facts.origin}: eagle_config.{_ENGINE_IDS}={list(listed)} is read in two ways: SGLang takes the outputs "
            f"of these layers (taps={':'.join(map(str, listed))}), vLLM of those before (taps={shifted}); give "
            "taps=...",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    if listed:
        return tuple(t - 1 for t in listed), ()
    total = read_target_layers(facts) or (facts.target.num_layers if facts.target else None)
    if total is None:
        raise missing("the list of target layers (taps)", "taps", "1:31:59", facts.origin)
    # The reference implementation has no setting: it reads the inputs of layers 2, N//2 and N-3.
    taps = (1, total // 2 - 1, total - 4)
    return taps, (f"taps not recorded: those of the EAGLE-3 reference for {total} layers are used, {list(taps)}",)


def _drafts(facts: Facts) -> int:
    """Drafts per anchor: a choice of serving, not of training, so an option may set it."""
    if facts.options.block_size is not None:
        return facts.options.block_size - 1
    config = facts.own.find("speculators_config")
    methods = config.get("proposal_methods") if isinstance(config, dict) else None
    if isinstance(methods, list) and methods and isinstance(methods[0], dict):
        tokens = methods[0].get("speculative_tokens")
        if isinstance(tokens, int) and tokens > 0:
            return tokens
    block = facts.own.integer("block_size")
    if block is not None:
        return block - 1
    raise missing("how many tokens to draft (block_size is drafts + 1)", "block_size", "8", facts.origin)


def _norm_before_residual(facts: Facts) -> bool:
    given = facts.options.norm_before_residual
    if given is None:
        given = facts.own.flag("norm_before_residual")
    if given is None and facts.format == "speculators":
        raise CheckpointError(
            f"{facts.origin}: norm_before_residual is not recorded; the trainer's default is false, an engine's is "
            "true; give norm_before_residual=false or true",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    return bool(given)
