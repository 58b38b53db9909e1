"""Sizes of a model's parts from names and shapes of its tensors and its configuration; reads no weights."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tauscope_target.checkpoint import CheckpointFolder
from tauscope_target.layer_parts import equal_matrices, mlps_of
from tauscope_target.memory import ModelSizes, kv_bytes_per_token, mixer_width

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.(.+)")
_SKIPPED = re.compile(r"^(model\.)?(visual|vision_tower|mtp)\.|^mtp_")
_EMBEDDING = re.compile(r"(embed_tokens|wte|word_embeddings|embed_in)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")


def model_sizes(
    folder: CheckpointFolder,
    config: Mapping[str, Any],
    *,
    itemsize: int,
    deepest_layer: int | None,
    with_head: bool,
) -> ModelSizes:
    """Sizes of what would be loaded.

    Args:
        folder: the opened checkpoint; pickled weights count as evenly spread over the layers.
        config: the text model's configuration as a map.
        itemsize: bytes of a weight and an activation as computed with.
        deepest_layer: last layer to load, or None.
        with_head: whether the head is loaded.
    """
    num_layers = int(config.get("num_hidden_layers", 0) or 0)
    even = folder.nbytes // itemsize // num_layers if num_layers else 0
    return sizes_of_shapes(
        {name: entry.shape for name, entry in folder.entries.items()},
        config,
        itemsize=itemsize,
        deepest_layer=deepest_layer,
        with_head=with_head,
        unnamed_layer=even,
    )


def sizes_of_shapes(
    shapes: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any],
    *,
    itemsize: int,
    deepest_layer: int | None = None,
    with_head: bool = True,
    unnamed_layer: int = 0,
) -> ModelSizes:
    """Sizes of a model whose tensors have these names and shapes.

    Args:
        shapes: of a checkpoint's tensors, or of a model's parameters.
        config: the text model's configuration as a map.
        itemsize: bytes of a weight and an activation as computed with.
        deepest_layer: last layer to load, or None.
        with_head: whether the head is loaded.
        unnamed_layer: elements of a layer when no tensor has a layer's name.
    """
    layers: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    embedding = head = 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        if _SKIPPED.search(name):
            continue
        match = _LAYER.search(name)
        if match:
            layers[int(match[1])][match[2]] = shape
        elif _EMBEDDING.search(name):
            embedding = count
        elif _HEAD.search(name):
            head = count
    num_layers = int(config.get("num_hidden_layers", 0) or 0)
    if not layers and num_layers:
        layers = defaultdict(dict, {index: {"": (unnamed_layer,)} for index in range(num_layers)})
    top = num_layers - 1 if deepest_layer is None else deepest_layer
    loaded = [layers[index] for index in sorted(layers) if index <= top]
    mlps = mlps_of(loaded) or []
    hidden = int(config["hidden_size"])
    return ModelSizes(
        hidden=hidden,
        intermediate=int(config.get("intermediate_size") or 4 * hidden),
        num_layers=num_layers,
        vocab=int(config["vocab_size"]),
        layer_bytes=tuple(_count_all(layer) * itemsize for layer in loaded),
        embedding_bytes=embedding * itemsize,
        head_bytes=head * itemsize if with_head and not config.get("tie_word_embeddings") else 0,
        has_head=with_head,
        kv_bytes_per_token=kv_bytes_per_token(config, itemsize),
        mixer_width=mixer_width(config),
        itemsize=itemsize,
        mlp_bytes=tuple(_count_all(mlp) * itemsize for mlp in mlps),
        mlp_matrices=equal_matrices(mlps),
    )


def _count_all(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes.values()))
