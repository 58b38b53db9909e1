"""What the terminal shows: the comparison on stdout, bars and notes on stderr. Without a terminal, plain lines."""

from collections.abc import Mapping
from threading import Lock
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tauscope_client.plain import shown
from tauscope_client.runs.agreement import agreement_line
from tauscope_client.runs.comparison import (
    comparison_lines,
    headline_rows,
    position_rows,
    split_rows,
    strata_rows,
    used_definitions,
)
from tauscope_client.runs.headline import kind_of_text, tau_label
from tauscope_client.runs.served import served_lines
from tauscope_client.runs.stability_line import stability_line

__all__ = ["TerminalProgress", "show_results"]

PLAIN_WIDTH = 160
"""Width when stdout is a file or a pipe, so that tables are not folded at 80 columns."""

PLAIN_STEPS = 4
"""Without a terminal a stage reports at most this many times after its start: a log is read, not watched."""

MIN_STRATUM_PROMPTS = 3
"""Strata of fewer prompts are anecdotes: they are in `results.json` and on the pages, not in the table here."""


def stdout_console() -> Console:
    """Console for results; wide and without colours when it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def show_results(results: Mapping[str, Any], console: Console) -> None:
    """Print the comparison of all drafters of a run."""
    drafters = results["drafters"]
    table = Table(title=f"{results['num_prompts']} prompts, {kind_of_text(results)}", title_justify="left")
    table.add_column("")
    for name in drafters:
        table.add_column(shown(name), justify="right")
    rows = headline_rows(drafters)
    for row in rows:
        table.add_row(shown(row.label), *map(shown, row.cells), style="bold" if row is rows[0] else None)
    by_split = split_rows(results)
    if by_split:
        table.add_section()
        for row in by_split:
            table.add_row(shown(row.label), *row.cells)
    for stratum, labels in strata_rows(drafters, min_prompts=MIN_STRATUM_PROMPTS).items():
        table.add_section()
        for row in labels:
            table.add_row(shown(f"{tau_label(results)}, {stratum} {row.label}"), *map(shown, row.cells))
    console.print(table)
    for line in [
        *comparison_lines(results),
        *served_lines(results),
        *agreement_line(results),
        *stability_line(results),
    ]:
        console.print(shown(line), soft_wrap=True)
    _show_positions(drafters, console)
    for label, text in used_definitions(results):
        console.print(f"[bold]{shown(label)}[/bold]: {shown(text)}", soft_wrap=True)
    for warning in results["warnings"]:
        console.print(f"[yellow]careful:[/yellow] {shown(warning)}", soft_wrap=True)
    for failure in results["failures"]:
        what = f"{failure['id']} ({failure['stage']}): {failure['message']}"
        console.print(f"[red]not evaluated:[/red] {shown(what)}")


def _show_positions(drafters: Mapping[str, Any], console: Console) -> None:
    width = max((len(drafter["overall"]["curves"]["prefix_rate_walk"]) for drafter in drafters.values()), default=0)
    if width == 0:
        return
    table = Table(title="by block position", title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("")
    table.add_column("")
    for position in range(1, width + 1):
        table.add_column(str(position), justify="right")
    for name, drafter in drafters.items():
        for index, row in enumerate(position_rows(drafter)):
            table.add_row(shown(name) if index == 0 else "", row.label, *row.cells)
        table.add_section()
    console.print(table)


class TerminalProgress:
    """Bars on stderr; plain lines when stderr is not a terminal. Use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        """Write to stderr unless told otherwise."""
        self._console = console if console is not None else Console(stderr=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._plain: dict[str, list[int]] = {}
        self._lock = Lock()

    def __enter__(self) -> Self:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bars as they are."""
        self._bars.stop()

    def start(self, stage: str, total: int, *, done: int = 0) -> None:
        """A stage begins."""
        with self._lock:
            if self._console.is_terminal:
                self._tasks[stage] = self._bars.add_task(stage, total=total, completed=done)
            else:
                self._plain[stage] = [done, total]
                resumed = f", {done} finished before" if done else ""
                self._line(f"{stage}: {total}{resumed}")

    def advance(self, stage: str, num: int = 1) -> None:
        """Pieces of a stage are done."""
        with self._lock:
            if self._console.is_terminal:
                self._bars.advance(self._tasks[stage], num)
                return
            done, total = self._plain[stage]
            self._plain[stage][0] = done + num
            if (done + num) * PLAIN_STEPS // total > done * PLAIN_STEPS // total:
                self._line(f"{stage}: {done + num}/{total}")

    def note(self, text: str) -> None:
        """A line of its own."""
        with self._lock:
            self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(shown(text), soft_wrap=True)
