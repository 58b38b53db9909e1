"""One clear line when the packages of an extra are missing."""

from collections.abc import Callable
from importlib.util import find_spec

from tauscope_wire.errors import RequestError

NEEDED = ("torch", "transformers", "fastapi", "uvicorn")


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def require_extra(is_installed: Callable[[str], bool] = _is_installed) -> None:
    """Check that what the service needs is installed; imports nothing.

    Raises:
        RequestError: names what is missing and the command that installs it.
    """
    missing = [package for package in NEEDED if not is_installed(package)]
    if missing:
        raise RequestError(f"{', '.join(missing)} not installed: run pip install 'tauscope[target]'")
