"""A console script without its extra says so in one line."""

from importlib.util import find_spec

from tauscope_wire.errors import ErrorCode, RequestError

_NEEDED = ("torch", "fastapi", "uvicorn", "prometheus_client")


def require_extra() -> None:
    """Check that the packages of the extra are installed, without importing them.

    Raises:
        RequestError: names what is missing and the command that installs it.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise RequestError(
            f"{', '.join(missing)} not installed: the drafter service needs its extra, "
            "install it with pip install 'tauscope[drafter]'",
            ErrorCode.NOT_SUPPORTED,
        )
