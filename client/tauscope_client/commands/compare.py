"""`tauscope compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tauscope_client.comparing import SideBySide, compare_sides, parse_side
from tauscope_client.exit_codes import EXIT_CODES_HELP
from tauscope_client.metrics import DEFINITIONS
from tauscope_client.plain import shown
from tauscope_client.runs.comparison import number
from tauscope_client.runs.files import write_json
from tauscope_client.terminal import stdout_console

__all__ = ["compare_command"]


def compare_command(
    before: Annotated[str, typer.Argument(help="RUN:DRAFTER, or RUN when it has one drafter.")],
    after: Annotated[str, typer.Argument(help="The one to compare with it.")],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Compare although references, prompts, numerics or target differ.")
    ] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the comparison to this file.")] = None,
) -> None:
    """Compare two drafters, paired by prompt: the difference, its interval, and how many prompts each wins."""
    found = compare_sides(parse_side(before), parse_side(after), is_forced=force)
    if json_path is not None:
        write_json(json_path, found.to_dict())
    show_comparison(found, stdout_console())


compare_command.__doc__ = f"{compare_command.__doc__}\n\n{EXIT_CODES_HELP}"


def show_comparison(found: SideBySide, console: Console) -> None:
    """Print a comparison."""
    for reason in found.reasons:
        console.print(f"[red]forced, although[/red] {shown(reason)}", soft_wrap=True)
    first = next(iter(found.statistics.values()))
    table = Table(title=f"{first.difference.num_prompts} prompts, paired", title_justify="left")
    table.add_column("")
    for head in (found.before.label, found.after.label, "difference", "95 % interval", "wins", "detectable"):
        table.add_column(shown(head), justify="right")
    for name, one in found.statistics.items():
        interval = one.difference
        ends = "–" if interval.low is None or interval.high is None else f"{interval.low:+.3f} to {interval.high:+.3f}"
        table.add_row(
            name,
            number(one.before),
            number(one.after),
            "–" if interval.estimate is None else f"{interval.estimate:+.3f}",
            ends,
            f"{one.wins_before} : {one.wins_after} ({one.ties} equal)",
            number(one.minimum_detectable),
            style="bold" if one is first else None,
        )
    console.print(table)
    console.print(f"{first.statistic}: {first.verdict}", markup=False)
    if first.difference.warning:
        console.print(f"[yellow]careful:[/yellow] {shown(first.difference.warning)}", soft_wrap=True)
    console.print("detectable: the true difference that this many prompts find four times in five", markup=False)
    for name in found.statistics:
        console.print(f"{name}: {DEFINITIONS[name]}", markup=False, soft_wrap=True)
