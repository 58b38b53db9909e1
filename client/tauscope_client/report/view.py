"""What the report shows, chosen from a run: plain values for the template, nothing formatted twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tauscope_client.report.charts import Series, bar_chart, line_chart
from tauscope_client.report.interval_chart import Estimate, IntervalRow, interval_chart
from tauscope_client.runs.agreement import agreement_line
from tauscope_client.runs.comparison import ENGINES, HEADLINES, comparison_lines, engine_rows, headline_rows
from tauscope_client.runs.loading import Run
from tauscope_client.runs.served import served_lines

__all__ = ["Card", "Chart", "Figure", "PromptLine", "View", "view_of"]


@dataclass(frozen=True)
class Card:
    """The headline of one drafter."""

    index: int
    name: str
    tau: str
    interval: str
    note: str


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


@dataclass(frozen=True)
class PromptLine:
    """One prompt in the table: its number on the page, tags, length, and tau of each drafter."""

    index: int
    id: str
    tags: str
    response_tokens: int
    taus: tuple[float | None, ...]


@dataclass(frozen=True)
class View:
    """Everything on the page except the texts of the prompts."""

    title: str
    subtitle: str
    names: tuple[str, ...]
    cards: tuple[Card, ...]
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    failures: tuple[Mapping[str, Any], ...]
    table: tuple[tuple[str, tuple[str, ...], str], ...]
    engines: tuple[tuple[str, tuple[str, ...], str], ...]
    figures: tuple[Figure, ...]
    prompts: tuple[PromptLine, ...]
    worst: tuple[PromptLine, ...]
    best: tuple[PromptLine, ...]
    definitions: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]


_CURVES = (
    ("prefix_rate_walk", "prefix, visited anchors"),
    ("conditional_rate_walk", "conditional, visited anchors"),
    ("prefix_rate_all", "prefix, all anchors"),
    ("conditional_rate_all", "conditional, all anchors"),
    ("teacher_forced_accuracy_walk", "teacher-forced, visited anchors"),
    ("teacher_forced_accuracy_all", "teacher-forced, all anchors"),
)
_NUM_EXTREMES = 5


def view_of(run: Run) -> View:
    """Choose what is shown.

    Raises:
        RequestError: the run is not finished.
    """
    results = run.results
    drafters: Mapping[str, Any] = results["drafters"]
    names = tuple(drafters)
    lines = _prompt_lines(drafters)
    ranked = sorted((line for line in lines if line.taus[0] is not None), key=lambda line: line.taus[0] or 0.0)
    num_extremes = min(_NUM_EXTREMES, len(ranked) // 2)
    manifest = run.manifest
    model = manifest.target.get("model", {})
    return View(
        title=f"tau of {', '.join(names)}",
        subtitle=f"{results['num_prompts']} prompts of {manifest.prompts.get('name', '?')}, target "
        f"{model.get('id', '?')}, references from {manifest.reference.get('kind', '?')} "
        f"{manifest.reference.get('version', '')}, {manifest.created_at}",
        names=names,
        cards=tuple(_card(at, name, drafters[name]) for at, name in enumerate(names)),
        sentences=(*comparison_lines(results), *served_lines(results), *agreement_line(results)),
        warnings=tuple(results["warnings"]),
        failures=tuple(results["failures"]),
        table=_table(drafters, results["definitions"]),
        engines=tuple(
            (row.label, row.cells, results["definitions"][line.name])
            for row, line in zip(engine_rows(drafters), ENGINES, strict=True)
        ),
        figures=tuple(_figures(drafters, results["definitions"])),
        prompts=lines,
        worst=tuple(ranked[:num_extremes]),
        best=tuple(reversed(ranked[-num_extremes:])) if num_extremes else (),
        definitions=tuple(sorted(results["definitions"].items())),
        facts=_facts(run),
    )


def _card(index: int, name: str, drafter: Mapping[str, Any]) -> Card:
    part = drafter["overall"]
    interval = part["intervals"].get("tau")
    ends = ""
    if interval is not None and interval["low"] is not None and interval["high"] is not None:
        ends = f"{interval['low']:.2f} to {interval['high']:.2f}"
    counts = part["counts"]
    note = f"{counts['num_rounds']} rounds, {counts['num_response_tokens']} tokens"
    tau = part["values"]["tau"]
    return Card(index, name, "–" if tau is None else f"{tau:.2f}", ends, note)


def _table(drafters: Mapping[str, Any], definitions: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    known = {line.label: definitions.get(line.name, "") for line in HEADLINES}
    for name, text in definitions.items():
        if name.startswith("ddtree_tau_"):
            known[f"DDTree tau, {name.rsplit('_', 1)[1]} nodes"] = text
    return tuple((row.label, row.cells, known.get(row.label, "")) for row in headline_rows(drafters))


def _figures(drafters: Mapping[str, Any], definitions: Mapping[str, str]) -> list[Figure]:
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
    strata = _strata(drafters)
    figures += [Figure("strata", "tau by stratum", tuple(strata))] if strata else []
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
    return Chart("budgets", "DDTree budgets", svg, definitions[f"ddtree_tau_{budgets[0]}"])


def _strata(drafters: Mapping[str, Any]) -> list[Chart]:
    charts = []
    first: Mapping[str, Any] = next(iter(drafters.values()), {"strata": {}})
    for at, stratum in enumerate(first["strata"]):
        tables = [{one["label"]: one for one in drafter["strata"].get(stratum, [])} for drafter in drafters.values()]
        labels = list(dict.fromkeys(label for table in tables for label in table))
        if len(labels) < 2:
            continue
        rows = [IntervalRow(label, tuple(_estimate(table.get(label)) for table in tables)) for label in labels]
        svg = interval_chart(rows, list(drafters), x_title="tau", start=1.0)
        charts.append(Chart(f"stratum-{at}", stratum, svg, f"tau by {stratum}, with its 95 % interval by prompt"))
    return charts


def _estimate(stratum: Mapping[str, Any] | None) -> Estimate:
    if stratum is None:
        return Estimate(None, None, None)
    note = f"{stratum['num_prompts']} prompts, {stratum['num_counted']:.0f} rounds"
    return Estimate(stratum["estimate"], stratum["low"], stratum["high"], note)


def _prompt_lines(drafters: Mapping[str, Any]) -> tuple[PromptLine, ...]:
    columns = [drafter["prompts"] for drafter in drafters.values()]
    return tuple(
        PromptLine(
            index=at,
            id=row[0]["prompt_id"],
            tags=", ".join(row[0]["tags"].values()),
            response_tokens=row[0]["response_tokens"],
            taus=tuple(prompt["values"]["tau"] for prompt in row),
        )
        for at, row in enumerate(zip(*columns, strict=True))
    )


def _facts(run: Run) -> tuple[tuple[str, str], ...]:
    """The manifest, flattened to what a reader looks for."""
    manifest = run.manifest
    rows: list[tuple[str, str]] = [("made", manifest.created_at)]
    rows += [(f"version of {name}", value) for name, value in manifest.versions.items()]
    rows += [(f"setting {name}", str(value)) for name, value in manifest.settings_in_force.items()]
    rows += [("prompts", ", ".join(f"{name} {value}" for name, value in manifest.prompts.items()))]
    rows += [(f"reference {name}", str(value)) for name, value in manifest.reference.items()]
    rows += [(f"target {name}", str(value)) for name, value in manifest.target.get("model", {}).items()]
    numerics = manifest.target.get("numerics", {})
    rows += [
        (f"target numerics {name}", str(value)) for name, value in numerics.items() if value not in (None, "", [], {})
    ]
    for name, card in manifest.drafters.items():
        shown = ("family", "format", "block_size", "layout", "taps", "sha256", "num_parameters", "rope")
        rows += [(f"drafter {name} {key}", str(card[key])) for key in shown if key in card]
    return tuple(rows)


def _padded(values: Sequence[float | None], width: int) -> tuple[float | None, ...]:
    return (*values, *([None] * (width - len(values))))
