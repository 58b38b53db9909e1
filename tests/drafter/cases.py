"""Every family's tiny checkpoint with its slow reference, one anchor at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from drafter import reference, reference_heads
from drafter.reference_heads import Walk
from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions

STATES, IDS = drafters.random_sequence(24)
TOKENS = IDS.tolist()


@dataclass(frozen=True)
class Case:
    """A family's checkpoint, and its reference for one anchor."""

    config: dict[str, Any] | None
    tensors: drafters.Tensors
    expected: Callable[[int, Walk], None]
    options: LoadOptions = field(default_factory=LoadOptions)
    states: Tensor = STATES


def block_rows(tensors: drafters.Tensors, config: dict[str, Any], p: int, *, all_rows: bool, **how: Any) -> Tensor:
    nested = config.get("dflash_config") or {"mask_token_id": drafters.MASK}
    rows = reference.dflash_block(
        tensors,
        {**config, "dflash_config": nested},
        STATES,
        IDS,
        p,
        embedding=drafters.shared_tables()["embed_tokens.weight"],
        **how,
    )
    return rows if all_rows else rows[1:]


def dflash() -> Case:
    config, tensors = drafters.dflash_config(), drafters.dflash_tensors()
    head = drafters.shared_tables()["lm_head.weight"].double()

    def expected(p: int, walk: Walk) -> None:
        for row in block_rows(tensors, config, p, all_rows=False):
            walk.take(head @ row)

    return Case(config, tensors, expected)


def dspark(kind: str) -> Case:
    config, tensors = drafters.dspark_config(kind), drafters.dspark_tensors(kind)

    def expected(p: int, walk: Walk) -> None:
        rows = block_rows(tensors, config, p, all_rows=True)
        reference_heads.dspark(tensors, rows, TOKENS[p], walk, kind)

    return Case(config, tensors, expected)


def domino(shift_label: bool, pure: int) -> Case:
    config, tensors = drafters.domino_config(shift_label=shift_label, pure=pure), drafters.domino_tensors()

    def expected(p: int, walk: Walk) -> None:
        reference_heads.domino(tensors, block_rows(tensors, config, p, all_rows=shift_label), TOKENS[p], walk, pure)

    return Case(config, tensors, expected)


def dflash2(kernel: int = 2, window: int = 9, *, per_block: bool = False) -> Case:
    """`per_block`: the window is placed once per block and not per row, as speculators trains it."""
    config = drafters.dflash2_config(conv_kernel_size=kernel, sliding_window=window)
    tensors = drafters.dflash2_tensors(kernel=kernel)

    def expected(p: int, walk: Walk) -> None:
        def sees(layer: int, i: int, key: int, in_block: int) -> bool:
            if per_block:
                return bool(in_block) or key >= p - window
            return abs(p + i - key) < window

        wrap = reference_heads.convolution_wrap(tensors)
        rows = block_rows(tensors, config, p, all_rows=False, sees=sees, wrap=wrap)
        reference_heads.dflash2(tensors, rows, TOKENS[p], walk, config["selector_top_k"])

    return Case(config, tensors, expected)


def eagle3(**switches: Any) -> Case:
    config, tensors = drafters.eagle3_config(**switches), drafters.eagle3_tensors()
    if switches:
        config["speculators_model_type"] = "eagle3"
    how = {**switches, "drafts": 3, "head": tensors["lm_head.weight"], "target_ids": drafters.draft_ids(40)}

    def expected(p: int, walk: Walk) -> None:
        reference_heads.eagle3(tensors, config, STATES, TOKENS, p, walk=walk, how=how)

    return Case(config, tensors, expected, LoadOptions(block_size=4, taps=drafters.TAPS))


def eagle3_whole_vocabulary() -> Case:
    tensors = drafters.eagle3_tensors(draft_vocab=drafters.VOCAB, own_head=False)
    config = drafters.eagle3_config(draft_vocab_size=None)
    how = {"drafts": 3, "head": drafters.shared_tables()["lm_head.weight"]}

    def expected(p: int, walk: Walk) -> None:
        reference_heads.eagle3(tensors, config, STATES, TOKENS, p, walk=walk, how=how)

    return Case(config, tensors, expected, LoadOptions(block_size=4, taps=drafters.TAPS))


def peagle() -> Case:
    config, tensors = drafters.eagle3_config(layers=2, pard_token=5), drafters.eagle3_tensors(layers=2)
    how = {"layers": 2, "mask": 5, "drafts": 3, "head": tensors["lm_head.weight"], "target_ids": drafters.draft_ids(40)}

    def expected(p: int, walk: Walk) -> None:
        reference_heads.eagle3(tensors, config, STATES, TOKENS, p, walk=walk, how=how)

    return Case(config, tensors, expected, LoadOptions(block_size=4, taps=drafters.TAPS))


def mtp(hidden: str) -> Case:
    tensors = drafters.mtp_tensors()
    config = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": drafters.TARGET_LAYERS,
        "hidden_size": drafters.HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": drafters.VOCAB,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1],
            "mrope_interleaved": True,
        },
    }
    generator = torch.Generator().manual_seed(5)
    final = 1 + 0.1 * torch.randn(drafters.HIDDEN, generator=generator) if hidden == "post" else None

    def expected(p: int, walk: Walk) -> None:
        reference_heads.mtp(tensors, STATES[:1], TOKENS, p, walk, drafts=3, final_norm=final)

    return Case(config, tensors, expected, LoadOptions(block_size=4, mtp_hidden=hidden), STATES[:1])  # type: ignore[arg-type]


CASES: dict[str, Callable[[], Case]] = {
    "dflash": dflash,
    "dspark-vanilla": lambda: dspark("vanilla"),
    "dspark-gated": lambda: dspark("gated"),
    "dspark-rnn": lambda: dspark("rnn"),
    "domino-fill-in": lambda: domino(False, 1),
    "domino-anchor-first": lambda: domino(True, 2),
    "dflash2": lambda: dflash2(2),
    "dflash2-long-kernel": lambda: dflash2(3),
    "eagle3": eagle3,
    "eagle3.1": lambda: eagle3(norm_before_residual=True, norm_output=True),
    "eagle3-whole-vocabulary": eagle3_whole_vocabulary,
    "peagle": peagle,
    "mtp-post": lambda: mtp("post"),
    "mtp-pre": lambda: mtp("pre"),
}
