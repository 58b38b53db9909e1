"""The rows that people look at first, chosen from `results.json`; for the terminal and the Markdown page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["HEADLINES", "Row", "headline_rows", "position_rows", "split_rows", "used_definitions"]


@dataclass(frozen=True)
class Row:
    """One line of a comparison: a label and one cell a drafter."""

    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Headline:
    """A scalar that is shown: its name in `results.json`, its label, and how it is written."""

    name: str
    label: str
    is_share: bool = False


HEADLINES = (
    Headline("tau", "tau"),
    Headline("tau_prompt_mean", "mean of per-prompt means"),
    Headline("tau_unclipped", "tau, unclipped"),
    Headline("accept_rate", "accepted / drafted", is_share=True),
    Headline("topk_walk_tau_4", "top-4 walk tau"),
    Headline("topk_walk_tau_8", "top-8 walk tau"),
    Headline("topk_streak_4", "top-4 streak"),
    Headline("topk_streak_8", "top-8 streak"),
    Headline("agreement", "agreement", is_share=True),
)

_CURVES = (
    ("prefix_rate_walk", "prefix"),
    ("conditional_rate_walk", "conditional"),
    ("teacher_forced_accuracy_all", "teacher-forced, all anchors"),
)


def number(value: float | None, *, is_share: bool = False) -> str:
    """A number as tables show it; a dash where the data cannot determine it."""
    if value is None:
        return "–"
    return f"{value:.1%}" if is_share else f"{value:.3f}"


def headline_rows(drafters: Mapping[str, Any]) -> list[Row]:
    """Headline numbers over all prompts."""
    overall = [drafter["overall"] for drafter in drafters.values()]
    rows = [
        Row(line.label, tuple(number(part["values"].get(line.name), is_share=line.is_share) for part in overall))
        for line in HEADLINES
    ]
    rows.append(Row("rounds", tuple(str(part["counts"]["num_rounds"]) for part in overall)))
    return rows


def split_rows(drafters: Mapping[str, Any]) -> list[Row]:
    """Mean emitted (tau) of each split, with its number of prompts; nothing when there is only one split."""
    first = next(iter(drafters.values()), None)
    splits: Sequence[str] = list(first["splits"]) if first else []
    if len(splits) < 2:
        return []
    return [
        Row(
            f"tau, {split} ({first['splits'][split]['counts']['num_prompts'] if first else 0} prompts)",
            tuple(number(drafter["splits"][split]["values"]["tau"]) for drafter in drafters.values()),
        )
        for split in splits
    ]


def position_rows(drafter: Mapping[str, Any]) -> list[Row]:
    """Per-position rates of one drafter, one cell a block position."""
    curves = drafter["overall"]["curves"]
    return [
        Row(label, tuple("–" if rate is None else f"{rate:.2f}" for rate in curves[name])) for name, label in _CURVES
    ]


def used_definitions(definitions: Mapping[str, str]) -> list[tuple[str, str]]:
    """Label and definition of everything the rows show."""
    pairs = [(line.label, definitions[line.name]) for line in HEADLINES if line.name in definitions]
    return pairs + [(label, definitions[name]) for name, label in _CURVES if name in definitions]
