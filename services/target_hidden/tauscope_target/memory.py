"""How much memory a model takes and how much there is: the arithmetic behind `auto`, `--gpu-memory` and `plan`.

Everything is computed from the configuration and from sizes; nothing here allocates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["resident", "streamed", "cpu"]

CONTEXT_BYTES = 866 << 20
"""What a CUDA process takes beside its tensors once it has run: context, cuBLAS, kernels of torch and Triton (measured
on one H200: 0.845 GiB). Where the driver tells more after the warm-up, that counts."""
BARE_CONTEXT_BYTES = 512 << 20
"""The part of it that is taken before anything has run, where the driver does not tell."""
RESERVE_BYTES = 128 << 20
"""Left out of every plan: allocator slack and what a kernel takes for itself."""
KEPT_FREE_BYTES = RESERVE_BYTES // 2
"""Of what was free on the device at the start, never taken: the allocator refuses."""
BLOCK_ELEMENTS: Mapping[Mode, int] = {"resident": 1 << 24, "cpu": 1 << 24, "streamed": 1 << 21}
"""Most logits of a block by mode: rows x vocabulary never exists at once."""
BLOCK_VOCAB: Mapping[Mode, int] = {"resident": 1 << 15, "cpu": 1 << 15, "streamed": 1 << 9}
"""Vocabulary of a block: wide enough for full-speed products; when streamed, narrow, so that 4,096 rows share a journey
of the head."""
BYTES_PER_LOGIT = 40
"""Logit, its float32, its 64-bit key on the way to the best, and what sorting takes."""
MIN_CHUNK_TOKENS = 256
"""Below this a layer's matrix products are far from full speed."""
SLACK = 1.1
"""Activations are estimated from shapes; measured peaks lie within a tenth of it."""
TABLE_BYTES = 512
"""Position ids and rotary tables per token of a pass: cosines and sines of 120 dimensions in BF16. (They are computed
in float32, but before keys and values are taken.)"""


@dataclass(frozen=True)
class RingShape:
    """How many token mixers and MLPs of layers a streamed model holds on the device at once.

    Attributes:
        mixers: token mixers.
        mlps: MLPs.
        spare: matrices of one more MLP.
    """

    mixers: int
    mlps: int
    spare: int = 0


ONE_LAYER, SPARE_MATRIX, TWO_MLPS, WHOLE_LAYERS = RingShape(1, 1), RingShape(1, 1, 1), RingShape(1, 2), RingShape(2, 2)
"""The smallest: one half is copied while the other computes. A spare matrix of an MLP, or a second MLP: copies keep the
bus busy through both halves. Two whole layers: the most that is of use, and what layers need that travel whole."""
LONG_RING = ONE_LAYER
"""What passes run with whose residual stream lies in host memory: they are so long that layers compute for longer than
they travel (`fitting.BALANCE_TOKENS`), and need the memory for keys and values."""


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of the text model, from its configuration.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        num_layers: decoder layers.
        vocab: rows of embedding and head.
        layer_bytes: bytes of each loaded decoder layer.
        embedding_bytes: of the embedding.
        head_bytes: of the head, 0 when tied or not loaded.
        has_head: whether logits are served.
        kv_bytes_per_token: keys and values of one full-attention layer.
        mixer_width: elements per token of the widest token mixer's projections.
        itemsize: bytes of an activation.
        mlp_bytes: of each layer's bytes, those of its MLP and the norm before it; empty where layers have no halves.
        mlp_matrices: matrices that each MLP travels as; 0 where MLPs travel whole, and then there is no spare cell.
    """

    hidden: int
    intermediate: int
    num_layers: int
    vocab: int
    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    has_head: bool
    kv_bytes_per_token: int
    mixer_width: int
    itemsize: int
    mlp_bytes: tuple[int, ...] = ()
    mlp_matrices: int = 0

    @property
    def weights_bytes(self) -> int:
        """All loaded weights."""
        return sum(self.layer_bytes) + self.embedding_bytes + self.head_bytes

    @property
    def ring_shapes(self) -> tuple[RingShape, ...]:
        """How weights may be held on the device when streamed, smallest first."""
        if not self.mlp_bytes:
            return (WHOLE_LAYERS,)
        spare = (SPARE_MATRIX,) if self.mlp_matrices > 1 else ()
        return (ONE_LAYER, *spare, TWO_MLPS, WHOLE_LAYERS)

    def ring_bytes(self, shape: RingShape) -> int:
        """Device memory of streamed weights."""
        if not self.mlp_bytes:
            return WHOLE_LAYERS.mlps * max(self.layer_bytes, default=0)
        mixers = [layer - mlp for layer, mlp in zip(self.layer_bytes, self.mlp_bytes, strict=True)]
        spare = shape.spare * max(self.mlp_bytes) // self.mlp_matrices if shape.spare else 0
        return shape.mixers * max(mixers) + shape.mlps * max(self.mlp_bytes) + spare

    @property
    def chunk_bytes_per_token(self) -> int:
        """Activations inside a layer, per token of a chunk: those of its mixer (projections and what its kernel makes
        of them) or of its MLP (three rows), whichever are more, beside rows of the residual stream and float32 norms.
        """
        elements = max(4 * self.mixer_width, 3 * self.intermediate) + 6 * self.hidden
        return int(SLACK * elements * self.itemsize)

    @property
    def residual_bytes_per_token(self) -> int:
        """One row of the residual stream."""
        return self.hidden * self.itemsize

    @property
    def long_bytes_per_token(self) -> int:
        """What stays on the device for the whole pass, per token, with the residual stream in host memory: tables, and
        keys and values of the layer under way.
        """
        return self.kv_bytes_per_token + TABLE_BYTES

    @property
    def pass_bytes_per_token(self) -> int:
        """The same with the residual stream on the device."""
        return self.residual_bytes_per_token + self.long_bytes_per_token


def mixer_width(config: Mapping[str, Any]) -> int:
    """Elements per token of the widest token mixer's projections."""
    heads, dim = int(config.get("num_attention_heads", 1)), _head_dim(config)
    kv = int(config.get("num_key_value_heads") or heads)
    full = 2 * heads * dim + 2 * kv * dim  # the query projection may carry a gate
    linear = 0
    if "linear_num_key_heads" in config:
        keys = int(config["linear_num_key_heads"]) * int(config["linear_key_head_dim"])
        values = int(config["linear_num_value_heads"]) * int(config["linear_value_head_dim"])
        linear = 2 * keys + 2 * values
    return max(full, linear)


def kv_bytes_per_token(config: Mapping[str, Any], itemsize: int) -> int:
    """Keys and values of one full-attention layer, per token."""
    heads = int(config.get("num_key_value_heads") or config.get("num_attention_heads", 1))
    return 2 * heads * _head_dim(config) * itemsize


def _head_dim(config: Mapping[str, Any]) -> int:
    found = config.get("head_dim")
    return int(found) if found else int(config["hidden_size"]) // int(config.get("num_attention_heads", 1))


@dataclass(frozen=True)
class Budget:
    """A pass that fits.

    Attributes:
        pass_tokens: most tokens of a pass, padding included.
        chunk_tokens: most tokens a layer computes at once.
        longest_tokens: longest prompt that fits alone, its residual stream in host memory; None where memory does not
            bound it.
        bytes: device memory of weights and activations at the size of a pass.
        device_tokens: largest pass whose residual stream stays on the device; None: every one.
        long_chunk_tokens: as `chunk_tokens`, in passes with the residual stream in host memory; None: the same.
        ring: how much of streamed weights the device holds.
        ring_bytes: memory of that, 0 when nothing is streamed.
    """

    pass_tokens: int
    chunk_tokens: int
    longest_tokens: int | None
    bytes: int
    device_tokens: int | None = None
    long_chunk_tokens: int | None = None
    ring: RingShape = WHOLE_LAYERS
    ring_bytes: int = 0


def head_work_bytes(sizes: ModelSizes, mode: Mode) -> int:
    """Device memory for logits: a block of them, the rows that they are made of (normed, and joined), and the buffers
    of a streamed head. It is taken when no layer computes, and returned.
    """
    if not sizes.has_head:
        return 0
    rows = 2 * BLOCK_ELEMENTS[mode] // BLOCK_VOCAB[mode]
    buffers = 2 * BLOCK_VOCAB[mode] if mode == "streamed" else 0
    return (rows + buffers) * sizes.hidden * sizes.itemsize + BLOCK_ELEMENTS[mode] * BYTES_PER_LOGIT


def device_floor(sizes: ModelSizes, mode: Mode, ring: RingShape | None = None) -> int:
    """Device memory that a mode needs whatever the pass: weights, or those that are held at once (with the smallest
    ring, if none is named), and what logits take.
    """
    held = sizes.weights_bytes if mode == "resident" else sizes.ring_bytes(ring or sizes.ring_shapes[0])
    return held + head_work_bytes(sizes, mode)
