"""Why a capture and a service differ: first what the states themselves show, then what the fingerprints say.

A cause that the states show (another layer, another row, after the norm) is tried out: the golden plane is compared
with what the service gives there. Fingerprints only name candidates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tauscope_client.parity.differences import row_differences
from tauscope_client.parity.golden import GoldenFacts
from tauscope_wire.layers import EMBEDDING, FINAL_NORM, Plane
from tauscope_wire.messages import ModelInfo, Numerics

__all__ = ["Cause", "fingerprint_differences", "likely_causes", "shown_by_states"]

CauseKind = Literal[
    "zero_rows",
    "layer_shift",
    "row_shift",
    "final_norm",
    "tokens",
    "weights",
    "kernels",
    "dtype",
    "settings",
    "unknown",
]

EXPLAINED: Final = 0.5
"""A cause explains a plane when at most this share of the difference is left: rounding may hide the rest."""

MAJORITY: Final = 2 / 3
"""Share of the differing planes that a cause must explain; one at the edge of the loaded layers has no neighbour."""

LARGE: Final = 0.3
"""A typical row that is this far off is no rounding: kernels of equal standing differ by a few percent."""

States = Mapping[Plane, npt.NDArray[Any]]


@dataclass(frozen=True)
class Cause:
    """A likely cause; `is_shown` says whether the states show it or only the fingerprints suggest it."""

    kind: CauseKind
    text: str
    is_shown: bool


def likely_causes(
    golden: States, service: States, failing: Sequence[int], *, facts: GoldenFacts, model: ModelInfo, numerics: Numerics
) -> list[Cause]:
    """Causes, the likeliest first; at least one.

    Args:
        golden: planes of one captured prompt, [rows, hidden], rows from position 0.
        service: the same planes of the service, their neighbours, and `final_norm` where it can be had.
        failing: the planes over their threshold.
        facts: of the capture.
        model: of the service.
        numerics: of the service.
    """
    shown = shown_by_states(golden, service, failing, last_layer=model.num_layers - 1)
    if shown:
        return shown
    suggested = fingerprint_differences(facts.numerics, numerics)
    apart = {plane: _typical(service[plane], golden[plane]) for plane in failing}
    if facts.model.config_sha256 != model.config_sha256:
        suggested.insert(0, Cause("weights", "the configurations of the two models differ: not the same model", False))
    if any(size > LARGE for size in apart.values()) and not any(cause.kind == "weights" for cause in suggested):
        suggested.insert(0, _large(golden, service, failing, apart))
    return suggested or [_unexplained(golden, failing, apart)]


def shown_by_states(golden: States, service: States, failing: Sequence[int], *, last_layer: int) -> list[Cause]:
    """Causes that explain most of the differing planes when they are undone."""
    causes = []
    zero = [plane for plane in failing if not golden[plane].astype(np.float32).any(axis=-1).all()]
    if zero:
        causes.append(Cause("zero_rows", f"the capture holds rows of zeros (layer {zero[0]}): it is broken", True))
    for shift in (-1, 1):
        if _explains(golden, service, [(plane, plane + shift) for plane in failing]):
            causes.append(_layer_shift(shift))
        if _explains_rows(golden, service, failing, shift):
            where = "earlier" if shift < 0 else "later"
            text = (
                f"row i of the capture is the service's row of position i{shift:+d}: rows shifted one {where}, or a "
                "token too many or too few at the start"
            )
            causes.append(Cause("row_shift", text, True))
    if last_layer in failing and _explains(golden, service, [(last_layer, FINAL_NORM)]):
        text = (
            f"layer {last_layer} of the capture was taken after the final norm (Hugging Face's last hidden_states "
            "entry is); layer ids here mean the state before it"
        )
        causes.append(Cause("final_norm", text, True))
    return causes


def fingerprint_differences(golden: Numerics, service: Numerics) -> list[Cause]:
    """What differs between two fingerprints, what changes most first."""
    causes: list[Cause] = []

    def note(kind: CauseKind, what: str, name: str) -> None:
        there, here = getattr(golden, name), getattr(service, name)
        if there != here:
            causes.append(Cause(kind, f"{what}: {_word(there)} in the capture, {_word(here)} here", False))

    note("weights", "other weights (revision)", "revision")
    note("kernels", "other linear-attention kernels", "linear_attention")
    note("kernels", "other convolution kernels", "convolution")
    note("dtype", "another compute dtype", "compute_dtype")
    note("dtype", "weights held in another dtype", "weights_dtype")
    note("dtype", "another quantisation", "quantization")
    note("kernels", "other faster paths (--option)", "options")
    note("kernels", "another attention implementation", "attention")
    note("settings", "another device", "device_name")
    note("settings", "other kernel configurations", "kernel_configs")
    for name in ("torch", "transformers", "fla"):
        note("settings", f"another version of {name}", name)
    return causes


def _layer_shift(shift: int) -> Cause:
    where = "below" if shift < 0 else "above"
    convention = (
        "the capture's ids were read in the tuple convention (0 is the embedding output, k + 1 the output of layer k)"
        if shift < 0
        else "the capture's ids are one too small for the canonical convention (k is the output of layer k)"
    )
    return Cause("layer_shift", f"every plane is the service's layer one {where}: {convention}", True)


def _large(golden: States, service: States, failing: Sequence[int], apart: Mapping[int, float]) -> Cause:
    """Far off with equal revisions: tokens when only some embeddings are off, else weights."""
    first = min(failing)
    if EMBEDDING in golden and EMBEDDING in failing:
        is_off = row_differences(service[EMBEDDING], golden[EMBEDDING]) > LARGE
        if not is_off.all():
            text = (
                f"{int(is_off.sum())} of {len(is_off)} embedding rows differ, from position {int(np.argmax(is_off))} "
                "on: the states were not computed from the token ids in the capture"
            )
            return Cause("tokens", text, True)
    agreeing = [plane for plane in golden if isinstance(plane, int) and plane < first]
    since = f"layers up to {max(agreeing)} agree, from {first} on they do not" if agreeing else "no layer agrees"
    text = (
        f"{since} (a typical row of layer {first} is {apart[first]:.0%} off): other weights, although the revision "
        "(a sample of the bytes) is the same, or other tokens"
    )
    return Cause("weights", text, False)


def _unexplained(golden: States, failing: Sequence[int], apart: Mapping[int, float]) -> Cause:
    first = min(failing)
    text = (
        f"unknown: the fingerprints are equal and no shift of layers or rows explains it; the difference begins at "
        f"layer {first} ({apart[first]:.2%} of a typical row). Capture again, and run the service's self-tests"
    )
    return Cause("unknown", text, False)


def _explains(golden: States, service: States, pairs: Sequence[tuple[int, Plane]]) -> bool:
    """Whether most golden planes are much closer to the other plane of their pair than to their own."""
    tried = [(_typical(service[q], golden[p]), _typical(service[p], golden[p])) for p, q in pairs if q in service]
    return _mostly(tried, len(pairs))


def _explains_rows(golden: States, service: States, failing: Sequence[int], shift: int) -> bool:
    """Whether golden row i is the service's row i + shift in most planes."""
    tried = []
    for plane in failing:
        theirs, ours = golden[plane], service[plane]
        if len(theirs) > 2:
            shifted = _typical(ours[:-1], theirs[1:]) if shift < 0 else _typical(ours[1:], theirs[:-1])
            tried.append((shifted, _typical(ours, theirs)))
    return _mostly(tried, len(failing))


def _mostly(tried: Sequence[tuple[float, float]], count: int) -> bool:
    explained = sum(left <= EXPLAINED * right for left, right in tried)
    return bool(tried) and explained >= MAJORITY * min(count, len(tried)) and len(tried) >= MAJORITY * count


def _typical(found: npt.NDArray[Any], golden: npt.NDArray[Any]) -> float:
    """Median relative difference of a row: a few odd rows (the first token's, often) do not decide."""
    return float(np.median(row_differences(found, golden)))


def _word(value: object) -> str:
    if isinstance(value, dict):
        return f"{len(value)} pinned"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)[:48]
