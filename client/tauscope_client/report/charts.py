"""Charts as inline SVG: text and lines only, coloured by the page's own style sheet, so that they follow its theme.

Every function returns escaped markup. Series are told apart by number (`s0`, `s1`, ...), the same number for the same
drafter in every chart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from markupsafe import Markup

__all__ = ["Series", "bar_chart", "line_chart", "nice", "plain", "svg", "ticks", "title"]

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 34, 46
MAX_TICKS = 6


@dataclass(frozen=True)
class Series:
    """One line or one set of bars."""

    name: str
    values: tuple[float | None, ...]


def line_chart(
    x_labels: Sequence[str], series: Sequence[Series], *, x_title: str, y_title: str, is_share: bool = False
) -> Markup:
    """Lines over categories, evenly spaced; gaps where a value is missing."""
    known = [value for one in series for value in one.values if value is not None]
    top = 1.0 if is_share else nice(max(known, default=1.0))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(x_labels) - 1)
    xs = [LEFT + step * at for at in range(len(x_labels))]
    body = _grid(top, is_share=is_share) + _x_labels(xs, x_labels) + _titles(x_title, y_title)
    for number, one in enumerate(series):
        points = [(x, _y(value, top), value) for x, value in zip(xs, one.values, strict=True) if value is not None]
        path = "".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y, _) in enumerate(points))
        body += f'<path class="line s{number}" d="{path}"/>'
        for (x, y, value), label in zip(points, _known_labels(x_labels, one), strict=True):
            said = f"{one.name}, {x_title} {label}: {_number(value, is_share=is_share)}"
            body += f'<circle class="dot s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title(said)}</circle>'
    return svg(HEIGHT, body, f"{y_title} by {x_title}")


def bar_chart(x_labels: Sequence[str], series: Sequence[Series], *, x_title: str, y_title: str) -> Markup:
    """Bars side by side, as shares."""
    known = [value for one in series for value in one.values if value is not None]
    top = min(1.0, nice(max(known, default=1.0)))
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(x_labels))
    width = slot * 0.8 / max(1, len(series))
    xs = [LEFT + slot * (at + 0.5) for at in range(len(x_labels))]
    body = _grid(top, is_share=True) + _x_labels(xs, x_labels) + _titles(x_title, y_title)
    for number, one in enumerate(series):
        for x, label, value in zip(xs, x_labels, one.values, strict=True):
            if value is None:
                continue
            left, y = x - slot * 0.4 + width * number, _y(value, top)
            said = f"{one.name}, {x_title} {label}: {_number(value, is_share=True)}"
            body += (
                f'<rect class="bar s{number}" x="{left:.1f}" y="{y:.1f}" width="{max(1.0, width - 1):.1f}" '
                f'height="{max(0.0, HEIGHT - BOTTOM - y):.1f}">{title(said)}</rect>'
            )
    return svg(HEIGHT, body, f"{y_title} by {x_title}")


def svg(height: float, body: str, name: str) -> Markup:
    """A picture from escaped parts."""
    return Markup(  # noqa: S704 - every text in body went through escape
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name, quote=True)}">{body}</svg>'
    )


def _grid(top: float, *, is_share: bool) -> str:
    body = ""
    for tick in ticks(top):
        y = _y(tick, top)
        body += f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        text = f"{tick:.0%}" if is_share or top <= 1 else plain(tick)
        body += f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    return body


def _x_labels(xs: Sequence[float], labels: Sequence[str]) -> str:
    every = max(1, -(-len(labels) // 17))
    return "".join(
        f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(label)}</text>'
        for at, (x, label) in enumerate(zip(xs, labels, strict=True))
        if at % every == 0
    )


def _titles(x_title: str, y_title: str) -> str:
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return (
        f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>'
        f'<text class="axis" x="4" y="16">{escape(y_title)}</text>'
    )


def _known_labels(labels: Sequence[str], one: Series) -> list[str]:
    return [label for label, value in zip(labels, one.values, strict=True) if value is not None]


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(value, top) / top)


def title(text: str) -> str:
    """What a pointer that rests on a mark is told."""
    return f"<title>{escape(text)}</title>"


def _number(value: float, *, is_share: bool) -> str:
    return f"{value:.1%}" if is_share else f"{value:.3f}"


def plain(value: float) -> str:
    """A tick as short as it can be."""
    return f"{value:g}"


def nice(value: float) -> float:
    """The next round number at or above."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return next(unit * step for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if unit * step >= value * 0.999)


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to `top`."""
    raw = top / (MAX_TICKS - 1)
    unit = 10.0 ** floor(log10(raw))
    step = next(unit * one for one in (1, 2, 2.5, 5, 10) if unit * one >= raw * 0.999)
    return [step * at for at in range(int(top / step + 1.001))]
