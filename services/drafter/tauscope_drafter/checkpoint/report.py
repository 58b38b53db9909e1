"""What `inspect` tells about a checkpoint: everything that decides how it drafts, and what does not fit."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tauscope_drafter.checkpoint.blocks import UNDECIDED_LAYOUT
from tauscope_drafter.checkpoint.facts import TargetFacts
from tauscope_drafter.checkpoint.incomplete import Lack, read_with_stand_ins
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.reading import Description, Outline, outlined, reader
from tauscope_drafter.fit import DrafterSide, TargetSide, check_fit
from tauscope_drafter.spec import Window
from tauscope_wire.errors import MismatchError

_SHARED = ("embed_tokens.weight", "lm_head.weight")
# What a stand-in makes worthless in the report, by option.
_SHOWN_AS = {
    "block_size": ("block_size", "drafts"),
    "taps": ("taps",),
    "mask_token_id": ("mask_token_id",),
    "rope_theta": ("rope",),
    "layer_types": ("windows",),
    "sliding_window": ("windows",),
    "embedding_scale": ("scales",),
}


def inspected(path: Path, options: LoadOptions, target: TargetFacts | None) -> dict[str, Any]:
    """A JSON-ready report, also of a checkpoint that does not say everything.

    What is not recorded is listed under `must_be_given`; the lines that it decides say so, all others are as they are.

    Raises:
        CheckpointError: the files cannot be used, for another reason than facts that are missing.
    """
    outline = outlined(path, options, target)
    spec, lacking = read_with_stand_ins(outline.facts, reader(outline))
    if spec is None:
        return _outline_report(outline, lacking)
    report = report_of(outline.described(spec), target)
    for lack in lacking:
        report |= dict.fromkeys(_SHOWN_AS.get(lack.option, ()), f"not recorded: give {lack.give}")
    return _with_lacks(report, lacking)


def _outline_report(outline: Outline, lacking: Sequence[Lack]) -> dict[str, Any]:
    """What is known without the numbers that everything else is computed from."""
    infos = outline.file.infos() if outline.file is not None else {}
    used = {s if isinstance(s, str) else s.source for s in outline.names.network.values()}
    report = {
        "path": str(outline.path),
        "family": outline.verdict.family,
        "format": outline.verdict.format,
        "evidence": list(outline.verdict.evidence),
        "tensors": [f"{name} {list(outline.found[name])}" for name in outline.names.network],
        "network_bytes": sum(infos[n].nbytes for n in used),
        "own_tables": {name: list(outline.found[name]) for name in _SHARED if name in outline.found},
        "from_target": [n.removesuffix(".weight") for n in _SHARED if n not in outline.found],
        "loadable": False,
    }
    return _with_lacks(report, lacking)


def _with_lacks(report: dict[str, Any], lacking: Sequence[Lack]) -> dict[str, Any]:
    loadable = report.pop("loadable")
    given = [f"{lack.give} ({lack.what}; the value is an example)" for lack in lacking]
    return report | {"must_be_given": given, "loadable": loadable and not lacking}


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
