"""One service at one address: sends requests of `messages`, reads answers, raises the exceptions of `errors`.

Owns URLs, headers and request encoding. It does not retry: what may be repeated is the caller's knowledge.
"""

import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from tauscope_wire.address import checked_key, parse_address
from tauscope_wire.errors import ErrorCode, WireError
from tauscope_wire.failures import broken_connection, error_of, foreign_answer
from tauscope_wire.request_body import JSON, MSGPACK, encode
from tauscope_wire.source import IterSource, Source
from tauscope_wire.tracing import Tracing
from tauscope_wire.transport import SOURCE, FastTransport

__all__ = ["Connection"]

TIMEOUT_S: Final = 600.0
"""Longest silence of a service: a cold 27B pass over a long prompt takes minutes before its first byte."""

CONNECT_TIMEOUT_S: Final = 10.0

MAXJSON_BYTES: Final = 64 << 20
"""Longest JSON answer that is read: `/tokenize` of the longest sequences, with room."""

_MAX_ERROR_BYTES: Final = 1 << 20

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class Connection:
    """Requests to one service. Safe to share between threads; close it, or use it in a `with` block.

    Args:
        base_url: `http://host:port`, `https://...` or `unix:///path/of/socket`.
        key: API key; appears in no message and no repr.
        transport: in place of a `FastTransport`.
        timeout_s: longest silence while sending or reading; requests with a deadline of their own bring it along.
        connect_timeout_s: longest wait for the connection.
        tls: context for https (own authorities).
        new_request_id: makes the value of `X-Request-Id`.
        tracing: makes a span of every request and sends its context along.

    Raises:
        RequestError: an address or key that cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        new_request_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        tracing: Tracing | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        url, uds = parse_address(self.base_url)
        headers = {"Accept-Encoding": "identity", "User-Agent": "tauscope"}
        if key is not None:
            headers["Authorization"] = f"Bearer {checked_key(key)}"
        self._timeout = httpx.Timeout(timeout_s, connect=connect_timeout_s)
        self._new_request_id = new_request_id
        self.tracing = tracing
        self._client = httpx.Client(
            base_url=url,
            headers=headers,
            transport=transport or FastTransport(uds=uds, tls=tls),
            trust_env=False,
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"Connection({self.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections."""
        self._client.close()

    def get_json(
        self,
        path: str,
        answer: type[M],
        *,
        params: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> M:
        """`GET` an answer that is JSON. A service that asks for its caller passes the id on.

        Raises:
            UnreachableError: no service, or not ours.
            TauscopeError: what the service answered.
        """
        exchange = self._exchange("GET", path, params=params, timeout_s=timeout_s, request_id=request_id)
        with exchange as (response, where):
            return _parse(response, where, answer)

    def post_json(
        self,
        path: str,
        request: BaseModel,
        answer: type[M],
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> M:
        """`POST` a request whose answer is JSON; errors as `get_json`."""
        exchange = self._exchange("POST", path, request=request, timeout_s=timeout_s, headers=headers)
        with exchange as (response, where):
            return _parse(response, where, answer)

    def post_tensors(
        self,
        path: str,
        request: BaseModel,
        read: Callable[[Source], T],
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """`POST` a request whose answer is a tensor body, read by `read` (`read_hidden`, `read_draft`, or a partial).

        `headers` are hints to what stands between; no service needs them.

        Raises:
            WireError: a body that breaks SPEC.md, also one that was cut.
            UnreachableError: no service, or not ours.
            TauscopeError: what the service answered.
        """
        exchange = self._exchange("POST", path, request=request, timeout_s=timeout_s, headers=headers)
        with exchange as (response, where):
            return _read(response, where, read)

    def get_tensors(
        self,
        path: str,
        params: Mapping[str, Any] | None,
        read: Callable[[Source], T],
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> T:
        """`GET` a tensor body; errors as `post_tensors`. A service that asks for its caller passes the id on."""
        exchange = self._exchange("GET", path, params=params, timeout_s=timeout_s, request_id=request_id)
        with exchange as (response, where):
            return _read(response, where, read)

    def head(self, path: str) -> Mapping[str, str]:
        """`HEAD`: the headers of the answer.

        Raises:
            GoneError: no such handle.
            TauscopeError: as `get_json`; without a body the message knows only the status.
        """
        with self._exchange("HEAD", path) as (response, _):
            return response.headers

    def delete(self, path: str) -> None:
        """`DELETE`; errors as `get_json`."""
        with self._exchange("DELETE", path) as (response, _):
            _read_bounded(response, _MAX_ERROR_BYTES)  # read to the end, so that the connection can be kept

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        *,
        request: BaseModel | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[httpx.Response, str]]:
        """An open answer with status 2xx."""
        where = f"{method} {self.base_url}{path}"
        body = encode(request) if request is not None else None
        span: AbstractContextManager[Mapping[str, str]] = (
            nullcontext({}) if self.tracing is None else self.tracing.asking(method, path)
        )
        sent = {**(headers or {}), "X-Request-Id": request_id or self._new_request_id()}
        if body is not None:
            sent |= {"Content-Type": body.content_type, "Content-Length": str(body.nbytes)}
        timeout = self._timeouts(request, timeout_s)
        with span as context:
            message = self._client.build_request(
                method, path, params=params, headers={**sent, **context}, timeout=timeout, content=body
            )
            try:
                response = self._client.send(message, stream=True)
                try:
                    if not response.is_success:
                        raise error_of(response, _read_bounded(response, _MAX_ERROR_BYTES), where)
                    yield response, where
                finally:
                    response.close()
            except httpx.TransportError as error:
                raise broken_connection(error, where, self.base_url) from error

    def _timeouts(self, request: BaseModel | None, timeout_s: float | None) -> httpx.Timeout:
        deadline_s = getattr(request, "deadline_s", None)
        if timeout_s is None and deadline_s is not None and self._timeout.read is not None:
            timeout_s = max(self._timeout.read, deadline_s + CONNECT_TIMEOUT_S)  # let the service's own 504 arrive
        return self._timeout if timeout_s is None else httpx.Timeout(timeout_s, connect=self._timeout.connect)


def _media_type(response: httpx.Response) -> str:
    media_type: str = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type


def _parse(response: httpx.Response, where: str, model: type[M]) -> M:
    if _media_type(response) != JSON:
        raise foreign_answer(response, where)
    body = _read_bounded(response, MAXJSON_BYTES)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        raise foreign_answer(response, where, f"{place}: {first['msg']}") from None


def _read(response: httpx.Response, where: str, read: Callable[[Source], T]) -> T:
    if _media_type(response) != MSGPACK or response.headers.get("content-encoding", "identity") != "identity":
        raise foreign_answer(response, where)
    length = response.headers.get("content-length", "")
    source = response.extensions.get(SOURCE) or IterSource(
        response.iter_raw(), length=int(length) if length.isdigit() else None
    )
    try:
        return read(source)
    except httpx.TimeoutException:
        raise
    except httpx.TransportError as error:
        raise WireError(
            f"{where}: the connection broke while the answer was read ({error}); ask again", ErrorCode.BODY_TRUNCATED
        ) from error


def _read_bounded(response: httpx.Response, max_bytes: int) -> bytes:
    """The body, up to a limit; more than that is cut and will not parse."""
    body = bytearray()
    for piece in response.iter_raw():
        body += piece
        if len(body) > max_bytes:
            break
    return bytes(body[:max_bytes])
