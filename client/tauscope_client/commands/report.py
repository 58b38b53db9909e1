"""`tauscope report`."""

from pathlib import Path
from typing import Annotated

import typer

from tauscope_client.exit_codes import EXIT_CODES_HELP
from tauscope_client.report import render_report
from tauscope_client.runs.export import write_csv, write_parquet
from tauscope_client.runs.files import write_text
from tauscope_client.runs.loading import load_run
from tauscope_client.terminal import stdout_console

__all__ = ["report_command"]


def report_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File. [default: RUN/report.html]")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Also write prompts.csv and rounds.csv there.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="The same as Parquet (needs pyarrow).")] = False,
) -> None:
    """Write one self-contained HTML page about a run: numbers, charts, and every prompt with its rounds coloured."""
    loaded = load_run(run)
    path = out if out is not None else run / "report.html"
    write_text(path, render_report(loaded))
    console = stdout_console()
    console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser", markup=False, soft_wrap=True)
    tables = [*(write_csv(loaded) if csv else []), *(write_parquet(loaded) if parquet else [])]
    for written in tables:
        console.print(str(written), markup=False, soft_wrap=True)


report_command.__doc__ = f"{report_command.__doc__}\n\n{EXIT_CODES_HELP}"
