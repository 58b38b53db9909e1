"""A service's command line: runs a typer application, and ends every failure in one clear line and an exit code."""

import traceback
from collections.abc import Mapping, Sequence

import typer

from tauscope_wire.errors import CheckpointError, MismatchError, RequestError, TauscopeError, TooLargeError
from tauscope_wire.tracing import tracing_as_active, tracing_from

TRACEBACK_VARIABLE = "TAUSCOPE_TRACEBACK"
"""Set to see where an unexpected failure comes from."""

EXIT_FAILED, EXIT_USAGE, EXIT_CHECKPOINT, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


def exit_code_of(error: TauscopeError) -> int:
    """The exit code that an error ends the program with."""
    if isinstance(error, CheckpointError):
        return EXIT_CHECKPOINT
    if isinstance(error, MismatchError):
        return EXIT_REFUSED
    if isinstance(error, RequestError | TooLargeError):
        return EXIT_USAGE
    return EXIT_FAILED


def run_program(app: typer.Typer, name: str, arguments: Sequence[str] | None, *, environ: Mapping[str, str]) -> int:
    """Run a service's program.

    Args:
        app: its commands.
        name: of the program, in its messages and traces.
        arguments: in place of those of the process.
        environ: the environment.

    Returns:
        The exit code.
    """
    try:
        tracing = tracing_from(environ, service=name, say=lambda line: typer.echo(line, err=True))
        with tracing_as_active(tracing):
            code = app(args=arguments, standalone_mode=False, prog_name=name)
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
