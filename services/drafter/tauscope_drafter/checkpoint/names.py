"""From the names trainers write to canonical ones (those of z-lab), and what is set aside on the way."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tauscope_wire.errors import CheckpointError, ErrorCode

# Wrappers of trainers (DDP, torch.compile, FSDP, Lightning modules, ..), stripped from the front until none is left.
PREFIXES = (
    "module.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "draft_model.",
    "dflash_module.",
    "model.",
    "drafter.",
    "logit_head.",
    "speculator.",
)
# Wrappers that FSDP and activation checkpointing put between two parts of a name.
_INNER = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")

_RENAMES = (
    (re.compile(r"^context_proj\."), "fc."),  # TorchSpec
    (re.compile(r"^context_norm\."), "hidden_norm."),
    (re.compile(r"^final_norm\."), "norm."),
    (re.compile(r"^encoder\.fc\."), "fc."),  # an engine's alias
    (re.compile(r"^encoder\.output_norm_enc\."), "hidden_norm."),
    (re.compile(r"^midlayer\."), "layers.0."),  # EAGLE
)
_BUFFERS = re.compile(r"(^|\.)rotary_emb\.")

# Kept apart from the network: shared with the target, used in training only, or a map of the vocabulary.
SET_ASIDE = (
    "embed_tokens.weight",
    "lm_head.weight",
    "verifier_lm_head.weight",
    "verifier_norm.weight",
    "t2d",
    "d2t",
)

# Parts that change the function and are not implemented: dropping them would be silent damage.
_REFUSED = (
    (re.compile(r"self_attn\.g_proj\."), "an attention gate (g_proj)"),
    (re.compile(r"aux_hidden_norms\."), "a norm per tap (aux_hidden_norms)"),
    (re.compile(r"attention_sink_bias|self_attn\.sinks$"), "attention sinks"),
)


class Split(NamedTuple):
    """One network tensor that is a range of rows of a fused one, given as a fraction known only with the shapes."""

    source: str
    part: str


class Names(NamedTuple):
    """Result of `normalise`.

    Attributes:
        network: canonical name -> name in the file (or the fused tensor it is a part of).
        aside: canonical name -> name in the file, for `SET_ASIDE`.
        ignored: names in the file that carry nothing (rotary buffers).
    """

    network: Mapping[str, str | Split]
    aside: Mapping[str, str]
    ignored: tuple[str, ...]


def strip(name: str) -> str:
    """The name without the wrappers of trainers."""
    for inner in _INNER:
        name = name.replace(inner, "")
    stripped = True
    while stripped:
        stripped = False
        for prefix in PREFIXES:
            if name.startswith(prefix):
                name, stripped = name[len(prefix) :], True
    return name


def normalise(names: Iterable[str], origin: str) -> Names:
    """Map a file's names to canonical ones.

    Args:
        names: as the file has them.
        origin: for messages.

    Raises:
        CheckpointError: two names become one, or a part that is not implemented.
    """
    network: dict[str, str | Split] = {}
    aside: dict[str, str] = {}
    ignored: list[str] = []
    for raw in names:
        name = strip(raw)
        for pattern, replacement in _RENAMES:
            name = pattern.sub(replacement, name)
        for refused, what in _REFUSED:
            if refused.search(name):
                raise CheckpointError(
                    f"{origin}: tensor {raw} is {what}, which no family here implements; leaving it out would change "
                    "the drafts, so the checkpoint is refused",
                    ErrorCode.CHECKPOINT_UNSUPPORTED,
                )
        if _BUFFERS.search(name):
            ignored.append(raw)
            continue
        for canonical, source in _targets(name, raw):
            where = aside if canonical in SET_ASIDE else network
            if canonical in where:
                raise CheckpointError(
                    f"{origin}: tensors {where[canonical]} and {raw} both mean {canonical}",
                    ErrorCode.CHECKPOINT_AMBIGUOUS,
                )
            where[canonical] = source  # type: ignore[assignment]  # aside never holds a split
    return Names(network, aside, tuple(ignored))


def _targets(name: str, raw: str) -> list[tuple[str, str | Split]]:
    for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
        if f".{fused}." in name:
            return [(name.replace(fused, part), Split(raw, part)) for part in parts]
    return [(name, raw)]
