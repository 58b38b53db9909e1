"""Pairs the parameters of a model with the tensors of a checkpoint, and names every one that does not fit."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from tauscope_wire.errors import CheckpointError, ErrorCode

UNUSED = re.compile(r"^(model\.)?(visual|vision_tower|mtp)\.|^mtp_|\.rotary_emb\.inv_freq$|\.masked_bias$")
"""Tensors that belong to parts which are never served, or that the model computes itself."""

PREFIXES: tuple[tuple[str, str], ...] = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""How vision-language checkpoints name their text tower, and the text model's own names."""


def match_names(model: Any, shapes: Mapping[str, tuple[int, ...]], *, skipped: Callable[[str], bool]) -> dict[str, str]:
    """Pair every parameter with a tensor of the checkpoint.

    Args:
        model: the skeleton.
        shapes: what the checkpoint holds.
        skipped: whether a tensor, by its name in the model, belongs to a part that is left out.

    Returns:
        Name in the model -> name in the checkpoint.

    Raises:
        CheckpointError: `tensor_missing`, `tensor_unexpected` or `tensor_shape`; names each.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in persistent(model)}
    tied = set(getattr(model, "_tied_weights_keys", None) or {}) if model.config.tie_word_embeddings else set()
    ignored = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []]
    prefix = f"{model.base_model_prefix}."
    has_prefix = any(_rename(name).startswith(prefix) for name in shapes)
    found: dict[str, str] = {}
    unexpected = []
    for name in shapes:
        own = _rename(name)
        if not has_prefix and f"{prefix}{own}" in wanted:
            own = f"{prefix}{own}"  # a checkpoint of the base model alone
        if own in wanted:
            found[own] = name
        elif not (UNUSED.search(name) or own in tied or skipped(own) or any(p.search(name) for p in ignored)):
            unexpected.append(name)
    optional = tied | {name for name, buffer in model.named_buffers() if buffer.device.type != "meta"}
    missing = [name for name in wanted if name not in found and name not in optional]
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {listed(missing)} of {type(model).__name__}",
            ErrorCode.TENSOR_MISSING,
            details={"missing": missing[:20], "unexpected": unexpected[:20]},
        )
    if unexpected:
        raise CheckpointError(
            f"the checkpoint holds {listed(unexpected)}, which {type(model).__name__} does not have; "
            "is config.json the one of this checkpoint?",
            ErrorCode.TENSOR_UNEXPECTED,
            details={"unexpected": unexpected[:20]},
        )
    for own, name in found.items():
        if shapes[name] != wanted[own]:
            raise CheckpointError(
                f"{name} has shape {list(shapes[name])}; the configuration asks for {list(wanted[own])}",
                ErrorCode.TENSOR_SHAPE,
                details={"tensor": name, "found": list(shapes[name]), "expected": list(wanted[own])},
            )
    return {own: name for own, name in found.items() if own not in tied}


def _rename(name: str) -> str:
    for old, new in PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def persistent(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Parameters (also tied ones) and those buffers that a checkpoint holds."""
    yield from model.named_parameters(remove_duplicate=False)
    for owner, module in model.named_modules():
        for leaf, buffer in module._buffers.items():
            if buffer is not None and leaf not in module._non_persistent_buffers_set:
                yield (f"{owner}.{leaf}" if owner else leaf), buffer


def listed(names: list[str], *, most: int = 5) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(names[:most])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {shown}{more}"
