"""Dots with whiskers, one line a label and within it one a series."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from tauscope_client.report.charts import BOTTOM, RIGHT, TOP, WIDTH, nice, plain, svg, ticks, title

__all__ = ["Estimate", "IntervalRow", "interval_chart"]

LABEL_WIDTH = 190
LABEL_CHARS = 30
ROW_HEIGHT = 24
SERIES_HEIGHT = 12
CLIP = 2.4
"""An interval that reaches further than this many times the largest estimate is cut off, and an arrow says so."""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `note` is shown on hover."""

    value: float | None
    low: float | None
    high: float | None
    note: str = ""


@dataclass(frozen=True)
class IntervalRow:
    """One line of an interval chart: a label and one estimate a series."""

    label: str
    estimates: tuple[Estimate, ...]


@dataclass(frozen=True)
class _Axis:
    start: float
    top: float

    def x(self, value: float) -> float:
        inner = WIDTH - LABEL_WIDTH - RIGHT
        return LABEL_WIDTH + inner * (min(max(value, self.start), self.top) - self.start) / (self.top - self.start)


def interval_chart(rows: Sequence[IntervalRow], names: Sequence[str], *, x_title: str, start: float = 0.0) -> Markup:
    """Draw the estimates of some series.

    Args:
        rows: labels with one estimate for each series.
        names: of the series.
        x_title: what is estimated.
        start: where the axis begins.
    """
    axis = _Axis(start, max(_reach(rows), start + 1e-6))
    row_height = max(ROW_HEIGHT, SERIES_HEIGHT * len(names) + 6)
    bottom = TOP + row_height * len(rows)
    body = ""
    for tick in ticks(axis.top):
        if tick < start:
            continue
        x = axis.x(tick)
        body += f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
        body += f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{plain(tick)}</text>'
    middle = (LABEL_WIDTH + WIDTH - RIGHT) / 2
    body += f'<text class="axis" x="{middle:.0f}" y="{bottom + 36}" text-anchor="middle">{escape(x_title)}</text>'
    for at, row in enumerate(rows):
        centre = TOP + row_height * (at + 0.5)
        short = row.label if len(row.label) <= LABEL_CHARS else row.label[: LABEL_CHARS - 1] + "…"
        body += (
            f'<text class="label" x="{LABEL_WIDTH - 10}" y="{centre + 4:.1f}" text-anchor="end">'
            f"{escape(short)}{title(row.label)}</text>"
        )
        for number, one in enumerate(row.estimates):
            y = centre + SERIES_HEIGHT * (number - (len(row.estimates) - 1) / 2)
            body += _mark(one, axis, number, y=y, said=f"{names[number]}, {row.label}")
    return svg(bottom + BOTTOM, body, x_title)


def _mark(one: Estimate, axis: _Axis, number: int, *, y: float, said: str) -> str:
    if one.value is None:
        return ""
    said += f": {one.value:.3f}"
    body = ""
    if one.low is not None and one.high is not None:
        said += f" ({one.low:.2f} to {one.high:.2f})"
        ends = f'x1="{axis.x(one.low):.1f}" x2="{axis.x(one.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"'
        body += f'<line class="whisker s{number}" {ends}/>'
        if one.high > axis.top:
            end = axis.x(axis.top)
            path = f"M{end - 6:.1f} {y - 4:.1f}L{end:.1f} {y:.1f}L{end - 6:.1f} {y + 4:.1f}"
            body += f'<path class="arrow s{number}" d="{path}"/>'
    said += f"; {one.note}" if one.note else ""
    return f'{body}<circle class="dot s{number}" cx="{axis.x(one.value):.1f}" cy="{y:.1f}" r="4">{title(said)}</circle>'


def _reach(rows: Sequence[IntervalRow]) -> float:
    """Right end of the axis."""
    estimates = [one for row in rows for one in row.estimates if one.value is not None]
    largest = max((one.value for one in estimates if one.value is not None), default=1.0)
    furthest = max((one.high for one in estimates if one.high is not None), default=largest)
    return nice(min(max(furthest, largest), largest * CLIP))
