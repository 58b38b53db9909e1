"""Where a run comes from: versions, settings, and what the services say about themselves."""

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from tauscope_client.prompts import PromptFile
from tauscope_client.runs.manifest import Manifest
from tauscope_wire.messages import DrafterCard, DrafterServiceInfo, TargetInfo

__all__ = ["client_version", "manifest_of"]


def client_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("tauscope")
    except PackageNotFoundError:
        return "unknown"


def manifest_of(
    passed: Mapping[str, Any],
    in_force: Mapping[str, Any],
    *,
    prompts: PromptFile,
    reference: Mapping[str, Any],
    target: TargetInfo,
    service: DrafterServiceInfo,
    cards: Sequence[DrafterCard],
    warnings: Sequence[str],
    now: datetime,
) -> Manifest:
    """Put together the manifest of a run."""
    return Manifest(
        created_at=now.isoformat(timespec="seconds"),
        versions={
            "tauscope": client_version(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "target_service": target.version,
            "drafter_service": service.version,
        },
        platform=f"{platform.system()} {platform.machine()}",
        settings_passed=dict(passed),
        settings_in_force=dict(in_force),
        prompts={"name": prompts.path.name, "sha256": prompts.sha256, "count": len(prompts.records)},
        reference=dict(reference),
        target=target.model_dump(mode="json", include=_TARGET_FIELDS),
        drafter_service=service.model_dump(mode="json", include={"version", "numerics", "target_model"}),
        drafters={card.name: card.model_dump(mode="json") for card in cards},
        warnings=list(warnings),
    )


_TARGET_FIELDS = {"version", "model", "architecture", "numerics", "mode", "self_tests", "noise_floor"}
