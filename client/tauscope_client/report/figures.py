"""The charts of the report, each with the definition of what it draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tauscope_client.report.charts import Series, bar_chart, line_chart
from tauscope_client.report.interval_chart import Estimate, IntervalRow, interval_chart
from tauscope_client.runs.comparison import TREE, tree_definition

__all__ = ["Chart", "Figure", "figures_of"]

_CURVES = (
    ("prefix_rate_walk", "prefix, visited anchors"),
    ("conditional_rate_walk", "conditional, visited anchors"),
    ("prefix_rate_all", "prefix, all anchors"),
    ("conditional_rate_all", "conditional, all anchors"),
    ("teacher_forced_accuracy_walk", "teacher-forced, visited anchors"),
    ("teacher_forced_accuracy_all", "teacher-forced, all anchors"),
)


@dataclass(frozen=True)
class Chart:
    """One picture of a figure; `id` is unique on the page."""

    id: str
    label: str
    svg: Markup
    text: str


@dataclass(frozen=True)
class Figure:
    """A heading and one picture or several to choose from."""

    id: str
    title: str
    charts: tuple[Chart, ...]


def figures_of(drafters: Mapping[str, Any], definitions: Mapping[str, str], *, tau: str = "tau") -> list[Figure]:
    """Every figure that the results have data for."""
    names = list(drafters)
    overall = [drafter["overall"] for drafter in drafters.values()]
    width = max((len(part["curves"]["prefix_rate_walk"]) for part in overall), default=0)
    figures = []
    if width:
        positions = [str(at) for at in range(1, width + 1)]
        charts = [
            Chart(
                f"curve-{key}",
                label,
                line_chart(
                    positions,
                    [
                        Series(name, _padded(part["curves"][key], width))
                        for name, part in zip(names, overall, strict=True)
                    ],
                    x_title="block position",
                    y_title="rate",
                    is_share=True,
                ),
                definitions[key],
            )
            for key, label in _CURVES
        ]
        figures.append(Figure("positions", "By position in the block", tuple(charts)))
        figures.append(
            Figure("rounds", "Accepted drafts of a round", (_histogram(names, overall, width, definitions),))
        )
        figures.append(Figure("ranks", "Where the right token stands", (_ranks(names, overall, definitions),)))
        figures.append(Figure("width", "If fewer drafts are verified", (_widths(names, overall, width, definitions),)))
    trees = _trees(names, overall, definitions)
    figures += [Figure("trees", "With trees instead of a chain", (trees,))] if trees else []
    strata = _strata(drafters, tau)
    figures += [Figure("strata", f"{tau} by stratum", tuple(strata))] if strata else []
    return figures


def _histogram(names: Sequence[str], overall: Sequence[Any], width: int, definitions: Mapping[str, str]) -> Chart:
    series = []
    for name, part in zip(names, overall, strict=True):
        counts = part["histograms"]["accepted_histogram"]
        total = sum(counts)
        shares = tuple(count / total if total else None for count in counts)
        series.append(Series(name, _padded(shares, width + 1)))
    labels = [str(at) for at in range(width + 1)]
    svg = bar_chart(labels, series, x_title="accepted", y_title="share of rounds")
    return Chart("histogram", "histogram", svg, definitions["accepted_histogram"])


def _ranks(names: Sequence[str], overall: Sequence[Any], definitions: Mapping[str, str]) -> Chart:
    """Shares of labels by their place in the row, from the first to beyond the last that is kept."""
    counts = [part["histograms"]["label_rank_histogram"] for part in overall]
    width = min((len(one) for one in counts), default=1)
    series = []
    for name, one in zip(names, counts, strict=True):
        total = sum(one)
        places = [*one[: width - 1], sum(one[width - 1 :])]
        series.append(Series(name, tuple(count / total if total else None for count in places)))
    labels = [*map(str, range(1, width)), f"after {width - 1}"]
    svg = bar_chart(labels, series, x_title="place in the draft row", y_title="share of labels")
    return Chart("ranks", "ranks", svg, definitions["label_rank_histogram"])


def _widths(names: Sequence[str], overall: Sequence[Any], width: int, definitions: Mapping[str, str]) -> Chart:
    series = [
        Series(name, _padded(part["curves"]["tau_by_width"], width)) for name, part in zip(names, overall, strict=True)
    ]
    svg = line_chart([str(at) for at in range(1, width + 1)], series, x_title="drafts verified", y_title="tau")
    return Chart("widths", "tau by width", svg, definitions["tau_by_width"])


def _trees(names: Sequence[str], overall: Sequence[Any], definitions: Mapping[str, str]) -> Chart | None:
    budgets = sorted(
        {int(key.rsplit("_", 1)[1]) for part in overall for key in part["values"] if key.startswith("ddtree_tau_")}
    )
    if not budgets:
        return None
    series = [
        Series(name, (part["values"]["tau"], *(part["values"].get(f"ddtree_tau_{budget}") for budget in budgets)))
        for name, part in zip(names, overall, strict=True)
    ]
    svg = line_chart(["chain", *map(str, budgets)], series, x_title="draft nodes of the tree", y_title="tau")
    return Chart(
        "budgets",
        "DDTree budgets",
        svg,
        tree_definition(definitions, f"{TREE}{budgets[0]}"),
    )


def _strata(drafters: Mapping[str, Any], tau: str) -> list[Chart]:
    charts = []
    first: Mapping[str, Any] = next(iter(drafters.values()), {"strata": {}})
    for at, stratum in enumerate(first["strata"]):
        tables = [{one["label"]: one for one in drafter["strata"].get(stratum, [])} for drafter in drafters.values()]
        labels = list(dict.fromkeys(label for table in tables for label in table))
        if len(labels) < 2:
            continue
        rows = [IntervalRow(label, tuple(_estimate(table.get(label)) for table in tables)) for label in labels]
        svg = interval_chart(rows, list(drafters), x_title=tau, start=1.0)
        charts.append(Chart(f"stratum-{at}", stratum, svg, f"{tau} by {stratum}, with its 95 % interval by prompt"))
    return charts


def _estimate(stratum: Mapping[str, Any] | None) -> Estimate:
    if stratum is None:
        return Estimate(None, None, None)
    note = f"{stratum['num_prompts']} prompts, {stratum['num_counted']:.0f} rounds"
    return Estimate(stratum["estimate"], stratum["low"], stratum["high"], note)


def _padded(values: Sequence[float | None], width: int) -> tuple[float | None, ...]:
    return (*values, *([None] * (width - len(values))))
