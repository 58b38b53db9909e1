"""Checks what a user gives to reach a service, without ever showing a secret in it."""

import httpx

from tauscope_wire.errors import RequestError

__all__ = ["checked_key", "parse_address"]


def parse_address(base_url: str) -> tuple[str, str | None]:
    """The URL for httpx, and the path of the Unix socket if it is one.

    Raises:
        RequestError: not an address, or one with a password in it.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise RequestError("the address of the service is not a URL; give http://HOST:PORT") from None
    if url.userinfo:
        raise RequestError("the address of the service holds a user name or password; give the key as a key instead")
    if url.scheme == "unix" and not url.host and len(url.path) > 1:
        return "http://localhost", url.path
    if url.scheme not in ("http", "https") or not url.host:
        raise RequestError(f"{base_url}: not an address of a service; give http://HOST:PORT or unix:///PATH")
    return base_url, None


def checked_key(key: str) -> str:
    """The key, if it can stand in a header.

    Raises:
        RequestError: it cannot; the message does not show it.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise RequestError("the API key is empty or holds a blank or a character outside of printable ASCII")
    return key
