"""Turns errors of sockets and `http.client` into those of httpx."""

import contextlib
import http.client
from collections.abc import Iterator
from typing import Final

import httpx

__all__ = ["as_httpx"]

_TIMEOUTS: Final[dict[str, type[httpx.TransportError]]] = {
    "connecting": httpx.ConnectTimeout,
    "writing": httpx.WriteTimeout,
    "reading": httpx.ReadTimeout,
}
_ERRORS: Final[dict[str, type[httpx.TransportError]]] = {
    "connecting": httpx.ConnectError,
    "writing": httpx.WriteError,
    "reading": httpx.ReadError,
}


@contextlib.contextmanager
def as_httpx(action: str) -> Iterator[None]:
    """Turn errors of sockets and `http.client` into httpx's."""
    try:
        yield
    except TimeoutError as error:
        raise _TIMEOUTS[action](f"timed out while {action}") from error
    except http.client.RemoteDisconnected as error:
        raise httpx.RemoteProtocolError("the server closed the connection without an answer") from error
    except http.client.IncompleteRead as error:
        raise httpx.RemoteProtocolError("the body ended before its last chunk") from error
    except http.client.HTTPException as error:
        raise httpx.RemoteProtocolError(f"not an HTTP answer: {type(error).__name__}") from error
    except OSError as error:
        raise _ERRORS[action](f"{error.strerror or type(error).__name__} while {action}") from error
