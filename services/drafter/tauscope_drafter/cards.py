"""A loaded drafter as the wire describes it."""

from dataclasses import asdict

from tauscope_drafter.loading import Loaded
from tauscope_wire.messages import DrafterCard


def card_of(name: str, loaded: Loaded) -> DrafterCard:
    """The card of a drafter under its name."""
    spec = loaded.spec
    return DrafterCard(
        name=name,
        family=spec.family,
        format=spec.format,
        block_size=spec.block_size,
        layout=spec.layout,
        drafts=spec.drafts,
        taps=list(spec.taps),
        mask_token_id=spec.mask_token_id,
        hidden_size=spec.backbone.hidden_size if spec.backbone else 0,
        target_hidden_size=spec.target_hidden_size,
        vocab_size=spec.vocab_size,
        sha256=loaded.sha256,
        path=str(loaded.path),
        num_parameters=loaded.num_parameters,
        memory_bytes=loaded.memory_bytes,
        rope=spec.backbone.rope.describe() if spec.backbone else {},
        windows=[asdict(w) for w in spec.backbone.windows] if spec.backbone and spec.layout != "sequential" else [],
        from_target=list(loaded.from_target),
        rows_depend_on_drafts=loaded.network.rows_depend_on_drafts,
        training_numerics=dict(spec.training_numerics) if spec.training_numerics else None,
        warnings=list(spec.warnings),
    )
