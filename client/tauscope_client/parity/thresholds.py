"""What still counts as the same: multiples of a measured noise floor, per plane.

A noise floor (`/info.noise_floor`) holds per plane the largest relative difference of a row between passes of different
shapes over the same prompt (`batch`, `chunks`); `options`, the deviation of named faster paths, is not noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

from tauscope_wire.dtypes import WireDtype

__all__ = ["DEFAULT_FLOORS", "FLOOR_MULTIPLE", "Thresholds", "thresholds_for"]

FLOOR_MULTIPLE: Final = 2.0
"""A capture has several times more rows than the floor was measured over, so its worst row lies further out; other
kernels (1.3 % after layer 1, 8.5 % after layer 61 of a 27B hybrid) must stay outside."""

DEFAULT_FLOORS: Final[Mapping[WireDtype, float]] = {"float32": 1e-5, "bfloat16": 2e-2}
"""Used where neither side measured: float32 passes differ by 2e-6 after eight layers, BF16 passes by up to 3e-2."""

SMALLEST_FLOORS: Final[Mapping[WireDtype, float]] = {"float32": 5e-6, "bfloat16": 2.0**-9}
"""A machine that repeats itself exactly measures 0, and another machine still sums in another order: a few dozen
roundings of float32, half a step of BF16."""

ROUNDING: Final = 2.0**-9
"""Relative error of a row that was rounded to BF16 for the file or the wire, at most."""

Source = Literal["service", "golden", "default"]


@dataclass(frozen=True)
class Thresholds:
    """Bounds on the largest relative difference of a row.

    Attributes:
        by_plane: bound of each plane.
        source: who measured the floor.
        multiple: of the floor.
        rounding: what was added because states came as BF16.
        flips: largest share of positions whose argmax may differ: near-ties.
    """

    by_plane: Mapping[int, float]
    source: Source
    multiple: float
    rounding: float
    flips: float

    def sentence(self) -> str:
        """How the bounds came about, for people."""
        measured = {
            "service": "the noise floor that the service measured at its start",
            "golden": "the noise floor in the capture (the service measured none)",
            "default": "a default noise floor (neither side measured one)",
        }[self.source]
        rounding = f", plus {self.rounding:.1e} for states rounded to bfloat16" if self.rounding else ""
        return f"threshold of a row: {self.multiple:g} x {measured}{rounding}"


FLIPS: Final[Mapping[WireDtype, float]] = {"float32": 0.01, "bfloat16": 0.05}
"""Near-ties: BF16 kernels of equal standing swap the best two of about one position in forty."""


def thresholds_for(
    planes: Sequence[int],
    *,
    service: Mapping[str, Any] | None,
    golden: Mapping[str, Any] | None,
    computed_in: WireDtype,
    num_rounded: int,
    multiple: float = FLOOR_MULTIPLE,
) -> Thresholds:
    """Bounds for `planes`.

    Args:
        planes: canonical ids.
        service: noise floor of the service, or None.
        golden: noise floor of the capture, used when the service has none.
        computed_in: the most exact dtype of the service.
        num_rounded: how many of the two sides (0, 1 or 2) come as BF16.
        multiple: of the floor.
    """
    source: Source = "default"
    by_plane: dict[int, float] = {}
    for name, floor in (("service", service), ("golden", golden)):
        by_plane = _measured(floor)
        if by_plane:
            source = "service" if name == "service" else "golden"
            break
    rounding = ROUNDING * num_rounded
    smallest = SMALLEST_FLOORS[computed_in]
    floors = {p: max(smallest, _nearest(by_plane, p)) if by_plane else DEFAULT_FLOORS[computed_in] for p in planes}
    bounds = {plane: multiple * floor + rounding for plane, floor in floors.items()}
    return Thresholds(bounds, source, multiple, rounding, FLIPS[computed_in])


def _measured(floor: Mapping[str, Any] | None) -> dict[int, float]:
    """Floor by plane; empty when there is none, or one of another form (a capture is a file from elsewhere)."""
    if floor is None or not _all_numbers(floor.get("planes")):
        return {}
    planes = floor["planes"]
    rows = [floor[kind] for kind in ("batch", "chunks") if floor.get(kind) is not None]
    if not rows or any(not _all_numbers(row) or len(row) != len(planes) for row in rows):
        return {}
    return {int(plane): max(float(row[index]) for row in rows) for index, plane in enumerate(planes)}


def _all_numbers(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and all(isinstance(x, int | float) and isfinite(x) for x in row)


def _nearest(by_plane: Mapping[int, float], plane: int) -> float:
    """The floor of a plane, or the larger one of its measured neighbours."""
    below = [p for p in by_plane if p <= plane]
    above = [p for p in by_plane if p >= plane]
    neighbours = ([max(below)] if below else []) + ([min(above)] if above else [])
    return by_plane[plane] if plane in by_plane else max(by_plane[p] for p in neighbours)
