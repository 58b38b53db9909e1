"""The `tauscope-drafter` program: the composition root of the drafter service, and one clear line for every failure."""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import typer

from tauscope_drafter.commands.convert import convert_command
from tauscope_drafter.commands.inspect import inspect_command
from tauscope_drafter.commands.plan import plan_command
from tauscope_drafter.commands.serve import serve_command
from tauscope_serving.keys_command import keys_app
from tauscope_wire.errors import CheckpointError, MismatchError, RequestError, TauscopeError, TooLargeError

TRACEBACK_VARIABLE = "TAUSCOPE_TRACEBACK"
"""Set to see where an unexpected failure comes from."""

EXIT_FAILED, EXIT_USAGE, EXIT_CHECKPOINT, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
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


def exit_code_of(error: TauscopeError) -> int:
    """The exit code that an error ends the program with."""
    if isinstance(error, CheckpointError):
        return EXIT_CHECKPOINT
    if isinstance(error, MismatchError):
        return EXIT_REFUSED
    if isinstance(error, RequestError | TooLargeError):
        return EXIT_USAGE
    return EXIT_FAILED


def main(arguments: Sequence[str] | None = None, *, environ: Mapping[str, str] = os.environ) -> int:
    """Run the program.

    Args:
        arguments: in place of those of the process.
        environ: in place of the environment of the process.

    Returns:
        The exit code, see `EXIT_CODES_HELP`.
    """
    try:
        code = app(args=arguments, standalone_mode=False, prog_name="tauscope-drafter")
    except TauscopeError as error:
        typer.echo(f"error: {error.message}", err=True)
        return exit_code_of(error)
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "show"):  # a usage error of the command line
            error.show()
            return int(error.exit_code)
        if environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        what = " ".join(str(error).split()) or "no message"
        typer.echo(
            f"error: unexpected {type(error).__name__}: {what} (set {TRACEBACK_VARIABLE}=1 to see where)", err=True
        )
        return EXIT_FAILED
    return int(code or 0)


def run() -> None:
    """Entry point of `python -m tauscope_drafter.cli`."""
    sys.exit(main())


if __name__ == "__main__":
    run()
