"""Exit codes of `tauscope`, and the one table from errors to them."""

from enum import IntEnum

from tauscope_client.prompts import PromptFileError
from tauscope_wire.errors import (
    AuthenticationError,
    DeadlineError,
    ErrorCode,
    MismatchError,
    NotFoundError,
    PermissionDeniedError,
    RequestError,
    RetryableError,
    TauscopeError,
    TooLargeError,
    UnreachableError,
)

__all__ = ["EXIT_CODES_HELP", "ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """What a script can rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    INCOMPLETE = 5
    ACCESS = 6
    FINDING = 7
    OTHER_NUMERICS = 8
    INTERRUPTED = 130


EXIT_CODES_HELP = """Exit codes: 0 done; 1 a service or engine failed; 2 wrong usage, prompts file or request;
3 a service cannot be reached or is not ready; 4 refused: things that do not fit (drafter and target, settings of a
resumed run, runs to compare); 5 done, but some prompts could not be evaluated; 6 no access (key);
7 probe --fail-on-finding found something; 8 parity: the service computes other states than the capture holds;
130 interrupted."""


def exit_code_of(error: TauscopeError) -> ExitCode:
    """The exit code that an error ends the program with."""
    if isinstance(error, (AuthenticationError, PermissionDeniedError)):
        return ExitCode.ACCESS
    if isinstance(error, (UnreachableError, RetryableError, DeadlineError)):
        return ExitCode.UNREACHABLE
    if isinstance(error, MismatchError):
        return ExitCode.REFUSED
    if isinstance(error, NotFoundError) and error.code is ErrorCode.ROUTE_UNKNOWN:
        return ExitCode.UNREACHABLE
    if isinstance(error, (PromptFileError, RequestError, TooLargeError, NotFoundError)):
        return ExitCode.USAGE
    return ExitCode.FAILED
