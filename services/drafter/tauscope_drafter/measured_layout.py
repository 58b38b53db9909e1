"""Loading a drafter whose layout has to be measured first; see `layout_probe` for the measurement."""

import logging
from dataclasses import replace

import torch

from tauscope_drafter.arrays import to_torch
from tauscope_drafter.checkpoint.blocks import UNDECIDED_LAYOUT
from tauscope_drafter.contract import ProbeSource
from tauscope_drafter.layout_probe import ProbeInput, decide, hit_rates, with_layout
from tauscope_drafter.loading import Loaded
from tauscope_drafter.place import Place
from tauscope_wire.errors import CheckpointError, ErrorCode

log = logging.getLogger(__name__)


def with_measured_layout(loaded: Loaded, place: Place, source: ProbeSource | None) -> Loaded:
    """The drafter as it is, or read in the layout that was measured because its files do not say it.

    Raises:
        CheckpointError: nothing to measure with, or no clear answer; lists the choices.
    """
    undecided = loaded.spec.extras.get(UNDECIDED_LAYOUT)
    if undecided is None:
        return loaded
    if source is None:
        raise CheckpointError(
            f"{loaded.path}: the layout is not recorded ({undecided}); give layout=fill-in or layout=anchor-first, or "
            "start with --target-url, so that it can be measured",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    texts = [
        ProbeInput(
            to_torch(text.states.states).to(place.device, place.dtype),
            torch.from_numpy(text.token_ids).to(place.device),
            text.start,
        )
        for text in source(loaded.spec.taps)
    ]
    layout, evidence = decide(hit_rates(loaded.spec, loaded.rebuild, texts), str(loaded.path))
    log.info("layout measured", extra={"fields": {"layout": layout, "evidence": evidence}})
    spec = with_layout(loaded.spec, layout)
    spec = replace(spec, warnings=(*spec.warnings, f"layout {layout} was measured: {evidence}"))
    return replace(loaded, spec=spec, network=loaded.rebuild(spec), evidence=(*loaded.evidence, f"layout: {evidence}"))
