"""The part of a description that all block drafters share (DFlash, DFlash2, DSpark, Domino)."""

from collections.abc import Mapping
from typing import Any

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.layout import resolve_layout
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.checkpoint.rope import read_rope
from tauscope_drafter.checkpoint.windows import read_windows
from tauscope_drafter.spec import BackboneSpec, DrafterSpec, Layout
from tauscope_wire.errors import CheckpointError, ErrorCode

UNDECIDED_LAYOUT = "layout_undecided"
"""Key in `extras` of a drafter whose layout must be probed; the value says why. Read as 1+N until then."""

MAX_LAYER_DIGITS = 4
_DEFAULT_EPS = 1e-6  # of every block drafter seen; used only where no configuration exists, and then said


def read_block_spec(facts: Facts, family: str, *, extras: Mapping[str, Any]) -> DrafterSpec:
    """Describe a block drafter from its configuration, its tensor shapes and the options.

    Raises:
        CheckpointError: a number is missing, or configuration and tensors disagree.
    """
    own, options = facts.own, facts.options
    backbone, warnings = read_backbone(facts)
    taps = read_taps(facts)
    target_hidden = _target_hidden(facts, backbone.hidden_size, taps)
    block = options.block_size or own.integer("block_size")
    if block is None:
        raise missing("block_size (anchor and masks)", "block_size", "16", facts.origin)
    if not 2 <= block <= 256:
        raise CheckpointError(f"{facts.origin}: block_size={block} is outside 2..256")
    mask = options.mask_token_id if options.mask_token_id is not None else own.integer("mask_token_id")
    if mask is None:
        raise missing("mask_token_id", "mask_token_id", "151669", facts.origin)
    vocab = read_vocabulary(facts)
    if not 0 <= mask < vocab[0]:
        raise CheckpointError(f"{facts.origin}: mask_token_id={mask} is no row of the embedding (0..{vocab[0] - 1})")
    verdict = resolve_layout(facts, family)
    extras = dict(extras) if verdict.layout else {**extras, UNDECIDED_LAYOUT: verdict.evidence}
    layout: Layout = verdict.layout or "fill-in"
    return DrafterSpec(
        family=family,
        format=facts.format,
        layout=layout,
        block_size=block,
        drafts=block if layout == "anchor-first" else block - 1,
        taps=taps,
        mask_token_id=mask,
        vocab_size=vocab[0],
        draft_vocab_size=vocab[1],
        target_hidden_size=target_hidden,
        target_num_layers=read_target_layers(facts),
        backbone=backbone,
        embedding_scale=_embedding_scale(facts),
        output_multiplier=own.number("output_multiplier", "logit_scale") or 1.0,
        logit_softcap=own.number("final_logit_softcapping") or None,
        extras=extras,
        training_numerics=own.find("training_numerics", "numerics"),
        warnings=(*warnings, *_witness(facts, layout, block)),
    )


def read_backbone(facts: Facts) -> tuple[BackboneSpec, tuple[str, ...]]:
    """Shape of the layers, inferred from tensors and checked against the configuration."""
    net = facts.network
    at = "layers.0.self_attn"
    hidden, _ = facts.shape("fc.weight", 2)
    (head_dim,) = facts.shape(f"{at}.q_norm.weight", 1)
    q_rows, q_width = facts.shape(f"{at}.q_proj.weight", 2)
    kv_rows, _ = facts.shape(f"{at}.k_proj.weight", 2)
    intermediate, _ = facts.shape("layers.0.mlp.gate_proj.weight", 2)
    for name, rows in (("q_proj", q_rows), ("k_proj", kv_rows)):
        if rows % head_dim:
            raise CheckpointError(
                f"{facts.origin}: tensor {at}.{name}.weight has {rows} rows, no multiple of the head size {head_dim} "
                f"that {at}.q_norm.weight gives",
                ErrorCode.TENSOR_SHAPE,
            )
    if q_width != hidden:
        raise CheckpointError(
            f"{facts.origin}: tensor {at}.q_proj.weight reads rows of width {q_width}, expected hidden size {hidden}",
            ErrorCode.TENSOR_SHAPE,
        )
    layers = num_layers(facts)
    windows, warnings = read_windows(facts, layers)
    rope, rope_warnings = read_rope(facts, head_dim)
    eps, eps_warnings = read_eps(facts)
    activation = net.find("hidden_act")
    if activation not in (None, "silu"):
        raise CheckpointError(
            f"{facts.origin}: hidden_act={activation!r}; this family uses silu", ErrorCode.CHECKPOINT_UNSUPPORTED
        )
    backbone = BackboneSpec(
        hidden_size=facts.agree("hidden_size", net.integer("hidden_size"), hidden, "fc.weight"),
        intermediate_size=facts.agree(
            "intermediate_size", net.integer("intermediate_size"), intermediate, "layers.0.mlp.gate_proj.weight"
        ),
        num_layers=layers,
        num_heads=facts.agree(
            "num_attention_heads", net.integer("num_attention_heads"), q_rows // head_dim, f"{at}.q_proj.weight"
        ),
        num_kv_heads=facts.agree(
            "num_key_value_heads", net.integer("num_key_value_heads"), kv_rows // head_dim, f"{at}.k_proj.weight"
        ),
        head_dim=facts.agree("head_dim", net.integer("head_dim"), head_dim, f"{at}.q_norm.weight"),
        norm_eps=eps,
        windows=windows,
        rope=rope,
        attention_bias=f"{at}.q_proj.bias" in facts.shapes,
    )
    return backbone, (*warnings, *rope_warnings, *eps_warnings)


def num_layers(facts: Facts) -> int:
    """Layers found among the tensors, checked against the configuration."""
    numbers = {name.split(".")[1] for name in facts.shapes if name.startswith("layers.")}
    if strange := sorted(n for n in numbers if not (n.isascii() and n.isdigit() and len(n) <= MAX_LAYER_DIGITS)):
        raise CheckpointError(
            f"{facts.origin}: tensors layers.{strange[0][:20]}.*: layers are numbered from 0",
            ErrorCode.TENSOR_UNEXPECTED,
        )
    found = {int(n) for n in numbers}
    count = len(found)
    if found != set(range(count)) or not found:
        lacking = next(i for i in range(count + 1) if i not in found)
        raise CheckpointError(f"{facts.origin}: no tensor layers.{lacking}.*", ErrorCode.TENSOR_MISSING)
    declared = facts.network.integer("num_hidden_layers")
    if declared is not None and declared != count:
        raise CheckpointError(
            f"{facts.origin}: num_hidden_layers={declared} in the configuration, tensors of {count} layers in the file",
            ErrorCode.TENSOR_MISSING if declared > count else ErrorCode.TENSOR_UNEXPECTED,
        )
    return count


def read_eps(facts: Facts) -> tuple[float, tuple[str, ...]]:
    """Epsilon of the norms; assumed, and said, only where there is no configuration at all."""
    eps = facts.options.rms_norm_eps or facts.network.number("rms_norm_eps")
    if eps is not None:
        return eps, ()
    if facts.has_config:
        raise missing("rms_norm_eps", "rms_norm_eps", "1e-6", facts.origin)
    return _DEFAULT_EPS, (f"rms_norm_eps not recorded: {_DEFAULT_EPS:g} assumed",)


def read_taps(facts: Facts) -> tuple[int, ...]:
    """Canonical layer ids in the order of the columns of `fc`."""
    given = facts.options.canonical_taps()
    zero_based = facts.own.integers("target_layer_ids")
    tuple_ids = facts.own.integers("aux_hidden_state_layer_ids")
    taps = given or zero_based
    if taps is None and tuple_ids is not None:
        taps = tuple(t - 1 for t in tuple_ids)
    elif given is None and zero_based and tuple_ids and tuple(t - 1 for t in tuple_ids) != zero_based:
        raise CheckpointError(
            f"{facts.origin}: target_layer_ids {list(zero_based)} and aux_hidden_state_layer_ids {list(tuple_ids)} "
            "name different layers (the second counts from the embedding output); give taps=...",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    if not taps:
        raise missing("the list of target layers (taps)", "taps", "1:16:31:46:61", facts.origin)
    if len(set(taps)) != len(taps) or min(taps) < -1:
        raise CheckpointError(f"{facts.origin}: taps {list(taps)}: each layer once, -1 is the embedding output")
    total = read_target_layers(facts)
    if total is not None and max(taps) >= total:
        raise CheckpointError(
            f"{facts.origin}: tap {max(taps)}: the configuration says that the target has {total} decoder layers "
            f"(0..{total - 1})",
        )
    return taps


def read_target_layers(facts: Facts) -> int | None:
    """N, where the files give it. TorchSpec's `num_target_layers` is the number of taps, not N."""
    if facts.format == "torchspec":
        return facts.own.integer("target_num_hidden_layers")
    return facts.own.integer("num_target_layers")


def read_vocabulary(facts: Facts) -> tuple[int, int]:
    """(V, dv): rows of the embedding and of the drafter's head."""
    shapes = facts.shapes
    whole = facts.network.integer("vocab_size") or facts.own.integer("vocab_size")
    if "embed_tokens.weight" in shapes:
        whole = facts.agree("vocab_size", whole, facts.shape("embed_tokens.weight", 2)[0], "embed_tokens.weight")
    if whole is None and facts.target is not None:
        whole = facts.target.vocab_size
    if whole is None and "t2d" in shapes:
        whole = facts.shape("t2d", 1)[0]
    if whole is None:
        raise CheckpointError(
            f"{facts.origin}: the vocabulary size is not recorded and no target is given; give --target-model",
            ErrorCode.CONFIG_INCOMPLETE,
            details={"option": "target_model", "what": "the vocabulary size", "give": "--target-model DIR"},
        )
    cut = facts.own.integer("draft_vocab_size")
    if "d2t" in shapes:
        cut = facts.agree("draft_vocab_size", cut, facts.shape("d2t", 1)[0], "d2t")
    if "lm_head.weight" in shapes:
        cut = facts.agree("draft_vocab_size", cut, facts.shape("lm_head.weight", 2)[0], "lm_head.weight")
    cut = cut or whole
    if cut > whole:
        raise CheckpointError(f"{facts.origin}: draft_vocab_size={cut} is more than vocab_size={whole}")
    return whole, cut


def _target_hidden(facts: Facts, hidden: int, taps: tuple[int, ...]) -> int:
    _, columns = facts.shape("fc.weight", 2)
    if columns % len(taps):
        raise CheckpointError(
            f"{facts.origin}: tensor fc.weight has {columns} columns, no multiple of the {len(taps)} taps {list(taps)}",
            ErrorCode.TENSOR_SHAPE,
        )
    width = columns // len(taps)
    declared = facts.own.integer("target_hidden_size")
    if declared is not None and declared != width:
        raise CheckpointError(
            f"{facts.origin}: tensor fc.weight has {columns} columns for {len(taps)} taps, {width} each; the "
            f"configuration says target_hidden_size={declared} (expected shape [{hidden}, {len(taps) * declared}])",
            ErrorCode.TENSOR_SHAPE,
            details={"tensor": "fc.weight", "expected": [hidden, len(taps) * declared], "found": [hidden, columns]},
        )
    return width


def _embedding_scale(facts: Facts) -> float:
    scale = facts.options.embedding_scale
    if scale is None:
        scale = facts.own.number("input_embedding_scale")
    if scale is None and facts.target is not None and facts.target.model_type.startswith("gemma"):
        raise missing(
            "input_embedding_scale (this target scales its embeddings, and drafters were trained both ways)",
            "embedding_scale",
            f"{facts.target.hidden_size**0.5:g}",
            facts.origin,
        )
    return 1.0 if scale is None else scale


def _witness(facts: Facts, layout: Layout, block: int) -> tuple[str, ...]:
    """`speculative_tokens` of speculators files is B - 1 for 1+N and B for anchor-first: a second witness."""
    config = facts.own.find("speculators_config")
    methods = config.get("proposal_methods") if isinstance(config, dict) else None
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
        return ()
    tokens = methods[0].get("speculative_tokens")
    expected = block if layout == "anchor-first" else block - 1
    if tokens in (None, expected):
        return ()
    return (f"speculative_tokens={tokens} does not fit block_size={block} with layout {layout} ({expected})",)
