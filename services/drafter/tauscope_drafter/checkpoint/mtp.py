"""The description of an MTP head, from the target's own configuration."""

from tauscope_drafter.checkpoint.blocks import read_eps, read_vocabulary
from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.checkpoint.rope import read_rope
from tauscope_drafter.spec import BackboneSpec, DrafterSpec, Window
from tauscope_wire.errors import CheckpointError, ErrorCode


def read_mtp_spec(facts: Facts, family: str) -> DrafterSpec:
    """Describe the head.

    Raises:
        CheckpointError: a number is missing, or contradicts the tensors.
    """
    net, options, at = facts.network, facts.options, "layers.0.self_attn"
    hidden, joined = facts.shape("fc.weight", 2)
    if joined != 2 * hidden:
        raise CheckpointError(
            f"{facts.origin}: tensor fc.weight has shape {[hidden, joined]}, expected {[hidden, 2 * hidden]}",
            ErrorCode.TENSOR_SHAPE,
        )
    (head_dim,) = facts.shape(f"{at}.q_norm.weight", 1)
    q_rows, _ = facts.shape(f"{at}.q_proj.weight", 2)
    kv_rows, _ = facts.shape(f"{at}.k_proj.weight", 2)
    inner, _ = facts.shape("layers.0.mlp.gate_proj.weight", 2)
    total = facts.target.num_layers if facts.target else None
    if facts.format == "target":
        total = net.integer("num_hidden_layers")
    if total is None:
        raise missing("the number of target layers", "config", "PATH (the target's config.json)", facts.origin)
    if options.block_size is None:
        raise missing("how many tokens to draft (block_size is drafts + 1)", "block_size", "4", facts.origin)
    state = options.mtp_hidden or ("post" if facts.format == "target" else None)
    if state is None:
        raise CheckpointError(
            f"{facts.origin}: engines feed the state after the target's final norm, this trainer captures it before; "
            "give mtp_hidden=post or mtp_hidden=pre (compare the acceptance of both)",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    rope, warnings = read_rope(facts, head_dim, partial=True)
    eps, eps_warnings = read_eps(facts)
    vocab, cut = read_vocabulary(facts)
    backbone = BackboneSpec(
        hidden_size=facts.agree("hidden_size", net.integer("hidden_size"), hidden, "fc.weight"),
        intermediate_size=inner,
        num_layers=1,
        num_heads=facts.agree(
            "num_attention_heads", net.integer("num_attention_heads"), q_rows // (2 * head_dim), f"{at}.q_proj.weight"
        ),
        num_kv_heads=facts.agree(
            "num_key_value_heads", net.integer("num_key_value_heads"), kv_rows // head_dim, f"{at}.k_proj.weight"
        ),
        head_dim=facts.agree("head_dim", net.integer("head_dim"), head_dim, f"{at}.q_norm.weight"),
        norm_eps=eps,
        windows=(Window(causal=True),),
        rope=rope,
        attention_bias=f"{at}.q_proj.bias" in facts.shapes,
    )
    return DrafterSpec(
        family=family,
        format=facts.format,
        layout="sequential",
        block_size=options.block_size,
        drafts=options.block_size - 1,
        taps=(total - 1,),
        mask_token_id=None,
        vocab_size=vocab,
        draft_vocab_size=cut,
        target_hidden_size=hidden,
        target_num_layers=total,
        backbone=backbone,
        extras={"hidden": state},
        warnings=(*warnings, *eps_warnings),
    )
