"""Sizes of a 27B hybrid, for arithmetic that loads nothing."""

from tauscope_target.memory import ModelSizes

LINEAR_LAYER, FULL_LAYER, MLP = 766_600_000, 744_500_000, 534_800_000
SHAPE_27B = ModelSizes(
    hidden=5120,
    intermediate=17408,
    num_layers=64,
    vocab=248_320,
    layer_bytes=(LINEAR_LAYER, LINEAR_LAYER, LINEAR_LAYER, FULL_LAYER) * 16,
    embedding_bytes=248_320 * 5120 * 2,
    head_bytes=248_320 * 5120 * 2,
    has_head=True,
    kv_bytes_per_token=2 * 4 * 256 * 2,
    mixer_width=16_384,
    itemsize=2,
    mlp_bytes=(MLP,) * 64,
    mlp_matrices=3,
)
