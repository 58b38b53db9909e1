"""The `tauscope-drafter` program: the composition root of the drafter service, and one clear line for every failure."""

import os
import sys
from collections.abc import Mapping, Sequence

import typer

from tauscope_drafter.commands.convert import convert_command
from tauscope_drafter.commands.inspect import inspect_command
from tauscope_drafter.commands.plan import plan_command
from tauscope_drafter.commands.serve import serve_command
from tauscope_serving.keys_command import keys_app
from tauscope_serving.program import run_program

EXIT_CODES_HELP = """Exit codes: 0 done; 1 failed; 2 wrong usage; 3 a checkpoint cannot be used; 4 refused (drafter and
target do not fit); 130 interrupted."""

app = typer.Typer(
    name="tauscope-drafter",
    help=f"Drafts for many anchors at once, over HTTP. Without a command it serves.\n\n{EXIT_CODES_HELP}",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback(invoke_without_command=True)(serve_command)
app.command("inspect")(inspect_command)
app.command("convert")(convert_command)
app.command("plan")(plan_command)
app.add_typer(keys_app(), name="keys")


def main(arguments: Sequence[str] | None = None, *, environ: Mapping[str, str] = os.environ) -> int:
    """Run the program.

    Args:
        arguments: in place of those of the process.
        environ: in place of the environment of the process.

    Returns:
        The exit code, see `EXIT_CODES_HELP`.
    """
    return run_program(app, "tauscope-drafter", arguments, environ=environ)


def run() -> None:
    """Entry point of `python -m tauscope_drafter.cli`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
