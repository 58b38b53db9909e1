"""A small page with tau over the steps of a training run."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from tauscope_client.report.interval_chart import Estimate, IntervalRow, interval_chart
from tauscope_client.watch.leaderboard import Entry

__all__ = ["curve_page"]


def curve_page(entries: Sequence[Entry]) -> str:
    """One self-contained page: a line a checkpoint, by step, with its interval."""
    ordered = sorted(entries, key=lambda entry: (entry.step is None, entry.step or 0, entry.name))
    rows = [
        IntervalRow(entry.name, (Estimate(entry.tau, entry.low, entry.high, entry.against_best),))
        for entry in ordered
        if entry.tau is not None
    ]
    chart = interval_chart(rows, ["tau"], x_title="tau", start=1.0)
    failed = "".join(f"<li>{escape(entry.name)}: {escape(entry.failure)}</li>" for entry in ordered if entry.failure)
    style = files("tauscope_client.report").joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>tau over steps</title><style>{style}</style></head><body><main><h1>tau over steps</h1><section>{chart}"
        f"</section><ul>{failed}</ul></main></body></html>\n"
    )
