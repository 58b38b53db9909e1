"""Sizes of a checkpoint's parts from its headers and configuration; reads no weights."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tauscope_target.checkpoint import CheckpointFolder
from tauscope_target.memory import ModelSizes, kv_bytes_per_token, mixer_width

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_SKIPPED = re.compile(r"^(model\.)?(visual|vision_tower|mtp)\.|^mtp_")
_EMBEDDING = re.compile(r"(embed_tokens|wte|word_embeddings|embed_in)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")


def count_elements(shape: tuple[int, ...]) -> int:
    """Elements of a tensor."""
    count = 1
    for extent in shape:
        count *= extent
    return count


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
    layers: dict[int, int] = defaultdict(int)
    embedding = head = 0
    for name, entry in folder.entries.items():
        count = count_elements(entry.shape)
        if _SKIPPED.search(name):
            continue
        match = _LAYER.search(name)
        if match:
            layers[int(match[1])] += count
        elif _EMBEDDING.search(name):
            embedding = count
        elif _HEAD.search(name):
            head = count
    num_layers = int(config.get("num_hidden_layers", 0) or 0)
    if not layers and num_layers:
        layers = defaultdict(int, dict.fromkeys(range(num_layers), folder.nbytes // itemsize // num_layers))
    top = num_layers - 1 if deepest_layer is None else deepest_layer
    hidden = int(config["hidden_size"])
    return ModelSizes(
        hidden=hidden,
        intermediate=int(config.get("intermediate_size") or 4 * hidden),
        num_layers=num_layers,
        vocab=int(config["vocab_size"]),
        layer_bytes=tuple(layers[index] * itemsize for index in sorted(layers) if index <= top),
        embedding_bytes=embedding * itemsize,
        head_bytes=head * itemsize if with_head and not config.get("tie_word_embeddings") else 0,
        has_head=with_head,
        kv_bytes_per_token=kv_bytes_per_token(config, itemsize),
        mixer_width=mixer_width(config),
        itemsize=itemsize,
    )
