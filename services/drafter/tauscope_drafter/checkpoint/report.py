"""What `inspect` tells about a checkpoint: everything that decides how it drafts, and what does not fit."""

import math
from typing import Any

from tauscope_drafter.checkpoint.blocks import UNDECIDED_LAYOUT
from tauscope_drafter.checkpoint.facts import TargetFacts
from tauscope_drafter.checkpoint.reading import Description
from tauscope_drafter.fit import DrafterSide, TargetSide, check_fit
from tauscope_drafter.spec import Window
from tauscope_wire.errors import MismatchError

_SHARED = ("embed_tokens.weight", "lm_head.weight")


def report_of(description: Description, target: TargetFacts | None) -> dict[str, Any]:
    """A JSON-ready report.

    Args:
        description: the checkpoint, described; its tensors need not be complete.
        target: the target it is to be used with, or None.
    """
    spec, found = description.spec, description.found
    wrong = [
        f"{name} {list(found[name])}, expected {list(shape)}"
        for name, shape in description.expected.items()
        if name in found and found[name] != tuple(shape)
    ]
    infos = description.file.infos() if description.file is not None else {}
    used = {s if isinstance(s, str) else s.source for s in description.names.network.values()}
    problems = [] if target is None else _misfit(description, target)
    undecided = spec.extras.get(UNDECIDED_LAYOUT)
    backbone = spec.backbone
    return {
        "path": str(description.path),
        "family": spec.family,
        "format": spec.format,
        "evidence": list(description.verdict.evidence),
        "layout": f"undecided, to be measured ({undecided})" if undecided else spec.layout,
        "block_size": spec.block_size,
        "drafts": spec.drafts,
        "taps": f"{list(spec.taps)} (outputs of these decoder layers, 0-based; -1 is the embedding)",
        "mask_token_id": spec.mask_token_id,
        "rope": backbone.rope.describe() if backbone else None,
        "layers": None if backbone is None else _shape(description),
        "windows": None if backbone is None else [_window(w) for w in backbone.windows],
        "vocabulary": {"target": spec.vocab_size, "draft": spec.draft_vocab_size},
        "family_settings": {k: v for k, v in spec.extras.items() if k != UNDECIDED_LAYOUT},
        "scales": {
            "embedding": spec.embedding_scale,
            "logits": spec.output_multiplier,
            "softcap": spec.logit_softcap,
        },
        "training_numerics": dict(spec.training_numerics) if spec.training_numerics else None,
        "parameters": sum(math.prod(s) for s in description.expected.values()),
        "network_bytes": sum(infos[n].nbytes for n in used),
        "own_tables": {name: list(found[name]) for name in _SHARED if name in found},
        "from_target": [n.removesuffix(".weight") for n in _SHARED if n not in found],
        "tensors_missing": [f"{n} {list(description.expected[n])}" for n in description.missing],
        "tensors_unexpected": [f"{n} {list(found[n])}" for n in description.unexpected],
        "tensors_of_wrong_shape": wrong,
        "warnings": list(spec.warnings),
        "problems": problems,
        "loadable": not (description.missing or description.unexpected or wrong or problems),
    }


def _misfit(description: Description, target: TargetFacts) -> list[str]:
    spec = description.spec
    try:
        check_fit(
            DrafterSide(
                description.path.name, spec.taps, spec.target_hidden_size, spec.vocab_size, spec.target_num_layers
            ),
            TargetSide("given", target.num_layers, target.hidden_size, target.vocab_size),
        )
    except MismatchError as error:
        return [error.message]
    return []


def _shape(description: Description) -> dict[str, int]:
    c = description.spec.layers
    return {
        "count": c.num_layers,
        "hidden": c.hidden_size,
        "mlp": c.intermediate_size,
        "heads": c.num_heads,
        "kv_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
    }


def _window(window: Window) -> str:
    causal = "causal" if window.causal else "bidirectional"
    if window.size is None:
        return f"full, {causal} in the block"
    return f"sliding {window.size} ({'per row' if window.per_row else 'per block'}), {causal} in the block"
