"""The `tauscope` program: commands, and one clear line for everything that goes wrong."""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import typer
from pydantic import ValidationError
from rich.console import Console

from tauscope_client.commands.compare import compare_command
from tauscope_client.commands.doctor import doctor_command
from tauscope_client.commands.eval import evaluate_command
from tauscope_client.commands.expect import expect_command
from tauscope_client.commands.extract import extract_command
from tauscope_client.commands.hidden import hidden_command
from tauscope_client.commands.parity import parity_command
from tauscope_client.commands.probe import probe_command
from tauscope_client.commands.references import references_command
from tauscope_client.commands.report import report_command
from tauscope_client.commands.speed import speed_command
from tauscope_client.commands.watch import watch_command
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode, exit_code_of
from tauscope_client.plain import shown
from tauscope_client.provenance import client_version
from tauscope_client.ship.command import ship_command
from tauscope_wire.errors import TauscopeError
from tauscope_wire.tracing import tracing_as_active, tracing_from

__all__ = ["app", "main"]

TRACEBACK_VARIABLE = "TAUSCOPE_TRACEBACK"
"""Set to see where an unexpected failure comes from."""

_INTERRUPTED = "interrupted; what was finished is kept, the same command with the same --out goes on from there"

app = typer.Typer(
    name="tauscope",
    help=f"How good is a drafter on a target, without a speculative server.\n\n{EXIT_CODES_HELP}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("eval")(evaluate_command)
app.command("hidden")(hidden_command)
app.command("doctor")(doctor_command)
app.command("references")(references_command)
app.command("compare")(compare_command)
app.command("report")(report_command)
app.command("speed")(speed_command)
app.command("expect")(expect_command)
app.command("probe")(probe_command)
app.command("parity")(parity_command)
app.command("watch")(watch_command)
app.command("ship")(ship_command)
app.command("extract")(extract_command)


@app.command("version")
def version_command() -> None:
    """Print the version."""
    typer.echo(client_version())


def main(arguments: Sequence[str] | None = None, *, environ: Mapping[str, str] = os.environ) -> int:
    """Run the program.

    Returns:
        The exit code, see `exit_codes`.
    """
    errors = Console(stderr=True, highlight=False)
    try:
        tracing = tracing_from(environ, service="tauscope", say=lambda line: errors.print(line, soft_wrap=True))
        with tracing_as_active(tracing):
            code = app(args=arguments, standalone_mode=False, prog_name="tauscope")
    except TauscopeError as error:
        errors.print(f"[red]error:[/red] {shown(error.message)}", soft_wrap=True)
        return exit_code_of(error)
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        errors.print(_INTERRUPTED, markup=False, soft_wrap=True)
        return ExitCode.INTERRUPTED
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or error.title
        errors.print(f"[red]error:[/red] {shown(where)}: {shown(first['msg'])}", soft_wrap=True)
        return ExitCode.USAGE
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "show"):  # a usage error of the command line
            error.show()
            return int(error.exit_code)
        if environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        what = " ".join(str(error).split()) or "no message"
        errors.print(
            f"[red]error:[/red] unexpected {type(error).__name__}: {shown(what)} "
            f"(set {TRACEBACK_VARIABLE}=1 to see where)",
            soft_wrap=True,
        )
        return ExitCode.FAILED
    if code == ExitCode.INTERRUPTED:  # typer turns the interrupt into an exit code
        errors.print(_INTERRUPTED, markup=False, soft_wrap=True)
    return int(code or 0)


def run() -> None:
    """Entry point of `python -m tauscope_client.cli`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
