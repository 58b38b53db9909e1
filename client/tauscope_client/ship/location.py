"""Where a file is: a local path, `[user@]host:path`, or `ssh://[user@]host[:port]/path`."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from tauscope_wire.errors import RequestError

__all__ = ["Location", "parse_location"]

_REMOTE = re.compile(r"(?P<host>(?:[A-Za-z0-9._-]+@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)):(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True)
class Location:
    """A path on a host.

    Attributes:
        host: what `ssh` is given, None for this machine.
        path: absolute, or relative to the home folder of a remote account.
        port: of sshd, None for the configured one.
    """

    host: str | None
    path: str
    port: int | None = None

    def __str__(self) -> str:
        return self.path if self.host is None else f"{self.host}:{self.path}"

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(self.path).name

    def child(self, relative: str) -> "Location":
        """A path below this one."""
        return Location(self.host, str(PurePosixPath(self.path) / relative), self.port)


def parse_location(text: str) -> Location:
    """Parse an end of a transfer.

    A colon makes it remote, as for `scp`, unless a slash comes before it; write `./a:b` for a local file named so.

    Raises:
        RequestError: no path, or a host that ssh would take for an option.
    """
    if any(character in text for character in "\n\r\0"):
        raise RequestError("a path with a line break cannot be shipped; rename it")
    if text.startswith("ssh://"):
        return _parse_url(text)
    match = _REMOTE.fullmatch(text)
    if match is None:
        if not text:
            raise RequestError("an empty path; give PATH or user@host:PATH")
        return Location(None, str(Path(text).expanduser().absolute()))
    host, path = match["host"].replace("[", "").replace("]", ""), match["path"]
    return Location(_checked_host(host, text), _remote_path(path, text))


def _parse_url(text: str) -> Location:
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise RequestError(f"{text}: not an address; give ssh://user@host:port/path") from None
    if url.password is not None or not url.hostname:
        raise RequestError(f"{text.partition('@')[2] or text}: give ssh://user@host:port/path, without a password")
    host = f"{url.username}@{url.hostname}" if url.username else url.hostname
    return Location(_checked_host(host, text), _remote_path(unquote(url.path), text), port)


def _checked_host(host: str, text: str) -> str:
    if host.startswith("-") or "@-" in host:
        raise RequestError(f"{text}: a host or user does not begin with '-'")
    return host


def _remote_path(path: str, text: str) -> str:
    path = path.removeprefix("~/")
    if not path or path == "~":
        raise RequestError(f"{text}: the path after the host is missing")
    return path
