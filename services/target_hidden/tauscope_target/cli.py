"""The `tauscope-target` program: the composition root of the target service, and one clear line for every failure."""

import os
import sys
from collections.abc import Mapping, Sequence

import typer

from tauscope_serving.keys_command import keys_app
from tauscope_serving.program import run_program
from tauscope_target.commands.golden import golden_command
from tauscope_target.commands.plan import plan_command
from tauscope_target.commands.serve import serve_command

EXIT_CODES_HELP = """Exit codes: 0 done; 1 failed (a self-test, the device, not enough free memory, the network): trying
again may help; 2 wrong usage; 3 the checkpoint cannot be used; 4 refused (reference kernels; plan: no mode fits); 130
interrupted."""

app = typer.Typer(
    name="tauscope-target",
    help=f"Hidden layers of a large model, over HTTP. Without a command it serves.\n\n{EXIT_CODES_HELP}",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback(invoke_without_command=True)(serve_command)
app.command("plan")(plan_command)
app.command("golden")(golden_command)
app.add_typer(keys_app(), name="keys")


def main(arguments: Sequence[str] | None = None, *, environ: Mapping[str, str] = os.environ) -> int:
    """Run the program.

    Args:
        arguments: in place of those of the process.
        environ: in place of the environment of the process.

    Returns:
        The exit code, see `EXIT_CODES_HELP`.
    """
    return run_program(app, "tauscope-target", arguments, environ=environ)


def run() -> None:
    """Entry point of `python -m tauscope_target.cli`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
