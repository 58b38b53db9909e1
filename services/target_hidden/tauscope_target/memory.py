"""How much memory a model takes and how much there is: the arithmetic behind `auto`, `--gpu-memory` and `plan`.

Everything is computed from the configuration and from sizes; nothing here allocates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["resident", "streamed", "cpu"]

CONTEXT_BYTES = 640 << 20
"""What a CUDA process takes before its first tensor: context, cuBLAS, kernels of torch and Triton (measured where NVML
tells; this is the assumption where it does not)."""
RESERVE_BYTES = 128 << 20
"""Left free below the cap: allocator slack and what a kernel takes for itself."""
BLOCK_ELEMENTS: Mapping[Mode, int] = {"resident": 1 << 24, "cpu": 1 << 24, "streamed": 1 << 21}
"""Most logits of a block by mode: rows x vocabulary never exists at once."""
BLOCK_VOCAB: Mapping[Mode, int] = {"resident": 1 << 15, "cpu": 1 << 15, "streamed": 1 << 11}
"""Vocabulary of a block: wide enough for full-speed products; when streamed, two buffers of 21 MB for width 5120."""
BYTES_PER_LOGIT = 40
"""Logit, its float32, its 64-bit key on the way to the best, and what sorting takes."""
MIN_CHUNK_TOKENS = 256
"""Below this a layer's matrix products are far from full speed."""
SLACK = 1.1
"""Activations are estimated from shapes; measured peaks lie within a tenth of it."""


@dataclass(frozen=True)
class RingShape:
    """How many token mixers and MLPs of layers a streamed model holds on the device at once."""

    mixers: int
    mlps: int


ONE_LAYER, TWO_MLPS, WHOLE_LAYERS = RingShape(1, 1), RingShape(1, 2), RingShape(2, 2)
"""The smallest: one half is copied while the other computes. Two MLPs: copies keep the bus busy through both halves.
Two whole layers: the most that is of use, and what layers need that travel whole."""


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

    @property
    def weights_bytes(self) -> int:
        """All loaded weights."""
        return sum(self.layer_bytes) + self.embedding_bytes + self.head_bytes

    @property
    def slot_bytes(self) -> int:
        """Two device slots of the largest layer."""
        return 2 * max(self.layer_bytes, default=0)

    @property
    def chunk_bytes_per_token(self) -> int:
        """Activations inside a layer, per token of a chunk: three MLP rows, norms in float32, mixer projections."""
        elements = 3 * self.intermediate + 6 * self.hidden + 3 * self.mixer_width
        return int(SLACK * elements * self.itemsize)

    @property
    def pass_bytes_per_token(self) -> int:
        """What stays for the whole pass, per token: the residual stream, its embedding input, rows on their way to the
        host, and one layer's K and V twice (a chunk's are appended by a copy).
        """
        return 3 * self.hidden * self.itemsize + 2 * self.kv_bytes_per_token


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
        longest_tokens: longest prompt that fits alone, or None where memory does not bound it.
        bytes: device memory of weights, slots and activations at that size.
    """

    pass_tokens: int
    chunk_tokens: int
    longest_tokens: int | None
    bytes: int


def head_work_bytes(sizes: ModelSizes, mode: Mode) -> int:
    """Device memory for logits: a block of them, and the buffers of a streamed head."""
    if not sizes.has_head:
        return 0
    buffers = 2 * BLOCK_VOCAB[mode] * sizes.hidden * sizes.itemsize if mode == "streamed" else 0
    return buffers + BLOCK_ELEMENTS[mode] * BYTES_PER_LOGIT


def device_floor(sizes: ModelSizes, mode: Mode) -> int:
    """Device memory that a mode needs whatever the pass: weights or slots, and what logits take."""
    held = sizes.weights_bytes if mode == "resident" else sizes.slot_bytes
    return held + head_work_bytes(sizes, mode)


def fit(
    sizes: ModelSizes,
    mode: Mode,
    available_bytes: int,
    *,
    pass_tokens: int | None,
    chunk_tokens: int | None,
    most_tokens: int = 16_384,
) -> Budget | None:
    """The largest pass that fits into `available_bytes` of allocations, or None.

    The chunk takes at most half of what is left above the floor, so that a pass holds several chunks.

    Args:
        sizes: of the model.
        mode: where weights lie.
        available_bytes: for tensors; context and reserve are not part of it.
        pass_tokens: asked for by name, or None for as many as fit, up to `most_tokens`.
        chunk_tokens: asked for by name, or None.
        most_tokens: largest pass that is chosen without being asked for.
    """
    floor = device_floor(sizes, mode)
    left = available_bytes - floor
    wanted = pass_tokens or most_tokens
    chunk = chunk_tokens or min(wanted, max(MIN_CHUNK_TOKENS, (left // 2) // sizes.chunk_bytes_per_token))
    longest = (left - chunk * sizes.chunk_bytes_per_token) // sizes.pass_bytes_per_token
    tokens = min(wanted, longest)
    if tokens < (pass_tokens or MIN_CHUNK_TOKENS):
        return None
    chunk = min(chunk, tokens)
    used = floor + chunk * sizes.chunk_bytes_per_token + tokens * sizes.pass_bytes_per_token
    return Budget(tokens, chunk, longest, used)
