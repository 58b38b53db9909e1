"""What the report shows, chosen from a run: plain values for the template, nothing formatted twice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tauscope_client.report.estimates import EstimateRow, estimate_notes, estimate_rows
from tauscope_client.report.figures import Figure, figures_of
from tauscope_client.runs.agreement import agreement_line
from tauscope_client.runs.comparison import (
    ENGINES,
    EXPECTED_HEADLINES,
    HEADLINES,
    ONE_SAMPLE,
    engine_rows,
    headline_rows,
)
from tauscope_client.runs.headline import headline_name, kind_of_text, tau_label
from tauscope_client.runs.loading import Run
from tauscope_client.runs.served import served_lines
from tauscope_client.runs.stability_line import stability_line

__all__ = ["Card", "PromptLine", "Verdict", "View", "view_of"]


@dataclass(frozen=True)
class Card:
    """The headline of one drafter."""

    index: int
    name: str
    tau: str
    interval: str
    note: str


@dataclass(frozen=True)
class Verdict:
    """What a comparison of two drafters came to: the conclusion, and what it rests on."""

    title: str
    detail: str


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
    headline: str
    headline_definition: str
    subtitle: str
    names: tuple[str, ...]
    cards: tuple[Card, ...]
    verdicts: tuple[Verdict, ...]
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    failures: tuple[Mapping[str, Any], ...]
    table: tuple[tuple[str, tuple[str, ...], str], ...]
    estimates: tuple[EstimateRow, ...]
    estimate_notes: tuple[str, ...]
    engines: tuple[tuple[str, tuple[str, ...], str], ...]
    figures: tuple[Figure, ...]
    prompts: tuple[PromptLine, ...]
    worst: tuple[PromptLine, ...]
    best: tuple[PromptLine, ...]
    definitions: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]


_NUM_EXTREMES = 5


def view_of(run: Run) -> View:
    """Choose what is shown.

    Raises:
        RequestError: the run is not finished.
    """
    results = run.results
    drafters: Mapping[str, Any] = results["drafters"]
    names = tuple(drafters)
    headline = headline_name(results)
    lines = _prompt_lines(drafters, headline)
    ranked = sorted((line for line in lines if line.taus[0] is not None), key=lambda line: line.taus[0] or 0.0)
    num_extremes = min(_NUM_EXTREMES, len(ranked) // 2)
    manifest = run.manifest
    model = manifest.target.get("model", {})
    return View(
        title=f"{tau_label(results)} of {', '.join(names)}",
        headline=tau_label(results),
        headline_definition=results["definitions"][headline],
        subtitle=" · ".join(
            [
                f"{results['num_prompts']} prompts of {manifest.prompts.get('name', '?')}",
                f"answers: {kind_of_text(results)}",
                f"target: {model.get('id', '?')}",
                f"references: {manifest.reference.get('kind', '?')} {manifest.reference.get('version', '')}".strip(),
                _when(manifest.created_at),
            ]
        ),
        names=names,
        cards=tuple(_card(at, name, drafters[name], headline) for at, name in enumerate(names)),
        verdicts=tuple(_verdict(pair, headline, tau_label(results)) for pair in results["comparisons"]),
        sentences=(*served_lines(results), *agreement_line(results), *stability_line(results)),
        warnings=tuple(results["warnings"]),
        failures=tuple(results["failures"]),
        table=_table(drafters, results["definitions"]),
        estimates=estimate_rows(run, names),
        estimate_notes=estimate_notes(run),
        engines=tuple(
            (row.label, row.cells, results["definitions"][line.name])
            for row, line in zip(engine_rows(drafters), ENGINES, strict=True)
        ),
        figures=tuple(figures_of(drafters, results["definitions"], tau=tau_label(results))),
        prompts=lines,
        worst=tuple(ranked[:num_extremes]),
        best=tuple(reversed(ranked[-num_extremes:])) if num_extremes else (),
        definitions=tuple(sorted(results["definitions"].items())),
        facts=_facts(run),
    )


def _card(index: int, name: str, drafter: Mapping[str, Any], headline: str) -> Card:
    part = drafter["overall"]
    interval = part["intervals"].get(headline)
    ends = ""
    if interval is not None and interval["low"] is not None and interval["high"] is not None:
        ends = f"{interval['low']:.2f} to {interval['high']:.2f}"
    counts = part["counts"]
    note = f"{counts['num_rounds']} rounds, {counts['num_response_tokens']} tokens"
    tau = part["values"][headline]
    return Card(index, name, "–" if tau is None else f"{tau:.2f}", ends, note)


def _verdict(pair: Mapping[str, Any], headline: str, label: str) -> Verdict:
    found = pair["statistics"][headline]
    interval = found["difference"]
    before, after = pair["before"], pair["after"]
    counts = (found["wins_after"], found["wins_before"], found["ties"])
    if interval["low"] is None or interval["high"] is None:
        return Verdict(f"Cannot tell {after} from {before}", "too few prompts for an interval of the difference")
    ends = (interval["low"], interval["high"])
    if found["verdict"] == "the first is better":
        before, after, ends = after, before, (-ends[1], -ends[0])
        counts = (counts[1], counts[0], counts[2])
    if found["verdict"] == "no difference found":
        title = f"No difference found between {after} and {before}"
    else:
        title = f"{after} is better than {before}"
    estimate = abs(interval["estimate"]) if title.startswith(after) else interval["estimate"]
    smallest = found["minimum_detectable"]
    detail = (
        f"{label} {estimate:+.2f}, 95 % interval {ends[0]:+.2f} to {ends[1]:+.2f}, paired by prompt: better on "
        f"{counts[0]}, worse on {counts[1]}, equal on {counts[2]}."
    )
    if smallest is not None:
        detail += f" So many prompts find differences from {smallest:.2f} on, four times in five."
    return Verdict(title, detail)


def _when(created_at: str) -> str:
    """UTC to the minute."""
    return f"{created_at[:16].replace('T', ' ')} UTC"


def _table(drafters: Mapping[str, Any], definitions: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    known = {line.label: definitions.get(line.name, "") for line in (*EXPECTED_HEADLINES, *HEADLINES)}
    for name, text in definitions.items():
        if name.startswith("ddtree_tau_"):
            known[f"DDTree tau, {name.rsplit('_', 1)[1]} nodes"] = text
    rows = headline_rows(drafters)
    return tuple((row.label, row.cells, known.get(row.label.removesuffix(f" ({ONE_SAMPLE})"), "")) for row in rows)


def _prompt_lines(drafters: Mapping[str, Any], headline: str) -> tuple[PromptLine, ...]:
    columns = [drafter["prompts"] for drafter in drafters.values()]
    return tuple(
        PromptLine(
            index=at,
            id=row[0]["prompt_id"],
            tags=", ".join(row[0]["tags"].values()),
            response_tokens=row[0]["response_tokens"],
            taus=tuple(prompt["values"].get(headline) for prompt in row),
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
