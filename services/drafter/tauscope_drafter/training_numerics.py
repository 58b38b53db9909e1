"""Whether the states a drafter is fed were computed as those it was trained on; a difference is said, never hidden."""

from collections.abc import Mapping
from typing import Any

from tauscope_wire.messages import Numerics

# Differences in these change states beyond rounding noise; versions and device names alone do not.
COMPARED = ("compute_dtype", "quantization", "linear_attention", "convolution", "attention")


def numerics_warnings(trained: Mapping[str, Any] | None, served: Numerics | None) -> list[str]:
    """One warning per difference, and one for reference kernels of a hybrid target.

    Args:
        trained: what the checkpoint records about its training, None when it records nothing.
        served: fingerprint of the service that made the states, None for states sent inline.
    """
    warnings: list[str] = []
    if served is None:
        return warnings
    for name in COMPARED:
        before, now = (trained or {}).get(name), getattr(served, name)
        if before is not None and before != now:
            warnings.append(f"{name}: trained on states of {before!r}, served with {now!r}")
    if served.reference_kernels and not (trained or {}).get("reference_kernels"):
        warnings.append("the target runs on reference kernels: its states differ from those of training kernels")
    return warnings
