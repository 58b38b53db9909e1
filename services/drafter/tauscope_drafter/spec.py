"""What a drafter is, once its configuration has been read and every open question is settled.

Owns the frozen description that families build their networks from. Does not read files (`checkpoint`) and holds no
weights. Nothing in here is optional by accident: a field that is None means "this drafter has no such thing".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Layout = Literal["fill-in", "anchor-first", "sequential"]
"""`fill-in` is 1+N: row j of the block predicts the token at p + j, rows 1..B-1 are read. `anchor-first`: row j
predicts p + 1 + j, rows 0..B-1 are read. `sequential`: no block of masks, the drafter drafts token after token."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the drafter: its own, never the target's.

    Attributes:
        theta: base of the frequencies.
        dim: rotated dimensions, from the first; the head dimension except for partial rotary heads (MTP).
        kind: `default`, `linear`, `yarn` or `llama3`.
        parameters: remaining numbers of `kind`, under their Hugging Face names.
    """

    theta: float
    dim: int
    kind: Literal["default", "linear", "yarn", "llama3"] = "default"
    parameters: Mapping[str, float | bool] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """JSON-ready form for cards and reports."""
        return {"theta": self.theta, "dim": self.dim, "kind": self.kind, **self.parameters}


@dataclass(frozen=True, slots=True)
class Window:
    """What a layer sees (docs/adding-a-drafter.md, Windows).

    Attributes:
        size: W of a sliding layer, None for full attention.
        causal: row i of the block sees block rows 0..i only; otherwise the whole block.
        per_row: context keys need `q - k < W` for each query row (engines, z-lab); otherwise the window is placed once
            per block, `k >= p - W`, the same for every row (speculators).
        in_block: the window also bounds the block's own keys (matters only where W < block).
    """

    size: int | None = None
    causal: bool = False
    per_row: bool = True
    in_block: bool = True


@dataclass(frozen=True, slots=True)
class BackboneSpec:
    """Shape of the transformer layers, in Qwen3's sense (q_norm/k_norm, SwiGLU, grouped queries)."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    windows: tuple[Window, ...]
    rope: RopeSpec
    attention_bias: bool = False

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def attention_scale(self) -> float:
        """Factor on q·k."""
        return 1.0 / math.sqrt(self.head_dim)


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """One drafter, completely described.

    Attributes:
        family: name of the module in `families`.
        format: who wrote the files (`z-lab`, `speculators`, ...).
        layout: see `Layout`.
        block_size: B, the anchor slot included. For sequential families drafts + 1.
        drafts: tokens drafted per anchor.
        taps: canonical layer ids, in the order of the columns of `fc`.
        mask_token_id: id whose embedding row fills the open places of the block, or None.
        vocab_size: rows of the target's embedding table V.
        draft_vocab_size: rows of the drafter's head dv (V unless the vocabulary was cut).
        target_hidden_size: Ht.
        target_num_layers: N when the files say it.
        backbone: shape of the layers, None for families without weights.
        embedding_scale, output_multiplier, logit_softcap: docs/adding-a-drafter.md, Scales.
        extras: numbers of one family (ranks, kernel sizes, switches), under the names its module documents.
        training_numerics: what the files record about the numerics of training, if anything.
        warnings: what the reader of a result must know about how this was read.
    """

    family: str
    format: str
    layout: Layout
    block_size: int
    drafts: int
    taps: tuple[int, ...]
    mask_token_id: int | None
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    target_num_layers: int | None
    backbone: BackboneSpec | None
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    logit_softcap: float | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    training_numerics: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def layers(self) -> BackboneSpec:
        """The backbone of a family that has one."""
        if self.backbone is None:
            raise TypeError(f"family {self.family} has no layers")
        return self.backbone

    def drafted_rows(self) -> slice:
        """Rows of the block whose output is a draft."""
        return slice(1, self.block_size) if self.layout == "fill-in" else slice(0, self.block_size)
