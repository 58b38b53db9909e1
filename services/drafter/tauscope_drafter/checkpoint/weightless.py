"""Drafters without weights: their description, and a distribution around the token they propose."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.families.family import Drafts
from tauscope_drafter.recording import JudgeLike
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError, ErrorCode

# Mass given to all tokens but the proposed one, evenly: rows must be distributions, and ranks beyond the first exist.
_REST = 1e-3


def read_weightless_spec(facts: Facts, family: str, *, extras: Mapping[str, Any]) -> DrafterSpec:
    """Describe a drafter that needs only to know how many tokens to draft, and the target's vocabulary.

    Raises:
        CheckpointError: no block size, or no target.
    """
    if facts.options.block_size is None:
        raise missing("how many tokens to draft (block_size is drafts + 1)", "block_size", "16", family)
    if facts.target is None:
        raise CheckpointError(
            f"{family}: the vocabulary is the target's; give --target-model", ErrorCode.CONFIG_INCOMPLETE
        )
    return DrafterSpec(
        family=family,
        format="none",
        layout="sequential",
        block_size=facts.options.block_size,
        drafts=facts.options.block_size - 1,
        taps=(),
        mask_token_id=None,
        vocab_size=facts.target.vocab_size,
        draft_vocab_size=facts.target.vocab_size,
        target_hidden_size=facts.target.hidden_size,
        target_num_layers=facts.target.num_layers,
        backbone=None,
        extras=extras,
    )


def spread(drafts: Tensor, *, vocab: int, top_k: int, judge: JudgeLike | None = None) -> Drafts:
    """Rows that are almost certain of `drafts` [a, K]; the other ranks are the lowest other ids, all equally likely."""
    others = torch.arange(top_k).expand(*drafts.shape, -1)[..., : top_k - 1]
    others = others + (others >= drafts.unsqueeze(-1)).long()  # skip the proposed id
    top_ids = torch.cat((drafts.unsqueeze(-1), others), -1)
    rest = math.log(_REST / (vocab - 1)) if vocab > 1 else -math.inf
    logprobs = torch.full(top_ids.shape, rest)
    logprobs[..., 0] = math.log1p(-_REST)
    if judge is not None:  # the proposal alone: a drafter without weights samples nothing else
        for column in drafts.unbind(1):
            judge.judge(torch.zeros(len(column), 1), column.unsqueeze(1))
    return Drafts(drafts, top_ids, logprobs)
