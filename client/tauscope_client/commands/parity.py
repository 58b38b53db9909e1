"""`tauscope parity`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tauscope_client.addresses import DEFAULT_DRAFTER_URL, Addresses
from tauscope_client.commands.options import TARGET_DEFAULT, Key, TargetUrl
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode
from tauscope_client.parity.comparing import Parity, compare_golden
from tauscope_client.parity.golden import open_golden
from tauscope_client.parity.thresholds import FLOOR_MULTIPLE
from tauscope_client.plain import shown
from tauscope_client.runs.files import write_json
from tauscope_client.terminal import stdout_console

__all__ = ["parity_command"]


def parity_command(
    golden: Annotated[Path, typer.Argument(help="A capture that tauscope-target golden wrote on the other machine.")],
    *,
    target: TargetUrl = TARGET_DEFAULT,
    key: Key = None,
    multiple: Annotated[
        float, typer.Option(min=1.0, help="Thresholds as multiples of the measured noise floor.")
    ] = FLOOR_MULTIPLE,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the comparison to this file.")] = None,
) -> None:
    """Compare a golden capture of another machine with the running target service, plane by plane, and say why."""
    with open_golden(golden) as file, Addresses(target, DEFAULT_DRAFTER_URL, key).open_target() as client:
        found = compare_golden(file, client, multiple=multiple)
    if json_path is not None:
        write_json(json_path, found.to_dict())
    show_parity(found, stdout_console())
    if not found.is_same:
        raise typer.Exit(ExitCode.OTHER_NUMERICS)


parity_command.__doc__ = f"{parity_command.__doc__}\n\n{EXIT_CODES_HELP}"


def show_parity(found: Parity, console: Console) -> None:
    """Print a comparison."""
    table = Table(title=f"{found.num_prompts} prompts, {found.num_positions} positions", title_justify="left")
    table.add_column("layer")
    for head in ("relative error", "worst row", "at (prompt:position)", "smallest cosine", "threshold", ""):
        table.add_column(head, justify="right")
    failing = set(found.failing)
    for plane in found.planes:
        table.add_row(
            "embedding" if plane.plane < 0 else str(plane.plane),
            f"{plane.relative_error:.2e}",
            f"{plane.worst:.2e}",
            f"{plane.worst_prompt}:{plane.worst_position}",
            f"{plane.smallest_cosine:.6f}",
            f"{found.thresholds.by_plane[plane.plane]:.2e}",
            "[red]differs[/red]" if plane.plane in failing else "[green]same[/green]",
        )
    console.print(table)
    lines = [found.thresholds.sentence()]
    if found.num_flips is None:
        lines.append("argmax: not compared (a side without the head)")
    else:
        bound = f"up to {found.thresholds.flips:.0%} are near-ties"
        lines.append(f"argmax: differs at {found.num_flips} of {found.num_positions} positions; {bound}")
    if found.skipped:
        lines.append(f"not compared, the service did not load them: layers {', '.join(map(str, found.skipped))}")
    lines += [f"noted, below the thresholds: {note.text}" for note in found.notes]
    if found.is_same:
        lines.append("verdict: the same numerics, within the noise floor")
    else:
        planes = f"{len(failing)} of {len(found.planes)} planes" if failing else "the argmax"
        lines.append(f"verdict: other numerics, {planes} over the threshold")
        lines += [
            f"{'cause' if cause.is_shown else 'likely cause' if index == 0 else 'also'}: {cause.text}"
            for index, cause in enumerate(found.causes)
        ]
    for line in lines:
        console.print(shown(line), soft_wrap=True)
