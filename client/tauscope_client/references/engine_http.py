"""JSON over HTTP with an inference server that is not ours: its errors become ours."""

import json
from typing import Any
from urllib.parse import urlsplit

import httpx

from tauscope_client.references.retries import Retries
from tauscope_wire.errors import (
    AuthenticationError,
    DeadlineError,
    ErrorCode,
    InternalError,
    NotFoundError,
    PermissionDeniedError,
    QuotaError,
    RequestError,
    TauscopeError,
    UnavailableError,
    UnreachableError,
)

__all__ = ["EngineHttp"]

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 1800.0
"""A long greedy answer of a big model on a busy server takes minutes and sends nothing until it is done."""

_PASSING = frozenset({429, 502, 503, 504})
"""Over a limit, or a gateway whose server is away; the same request may be answered a moment later."""

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

_MESSAGE_CHARS = 400
# How the engines say that the prompt does not fit: vLLM, SGLang, llama.cpp.
_TOO_LONG_WORDS = ("context length", "maximum context", "context size", "longer than the model", "too long")


class EngineHttp:
    """Requests to one inference server, with retries where a retry can help."""

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        retries: Retries | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        """Remember the address; nothing is sent yet.

        Raises:
            RequestError: `base_url` is not an http(s) address.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise RequestError(f"reference server {base_url!r}: expected an address like http://127.0.0.1:30000")
        if parts.username is not None:
            raise RequestError("the reference server's address holds a user name or password; use --reference-key")
        path = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{path}"
        self._retries = retries if retries is not None else Retries()
        self._client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            transport=transport,
            # A proxy of the environment is for the network, never for this machine (or the near end of a tunnel).
            trust_env=parts.hostname not in _LOOPBACK,
            timeout=httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def find(self, path: str, *, needs_key: bool = False) -> dict[str, Any] | None:
        """GET a JSON object; None when the server has no such route, keeps it for others, or answers something else.

        Asked again like a completion: a run is often the first to ask a server that has just been started.

        Args:
            path: the route.
            needs_key: the route is open to everybody who may ask for completions, so a refusal there is the answer.

        Raises:
            UnreachableError: nothing answers at the address.
            UnavailableError: it is over its limits, or its gateway does not reach it.
            AuthenticationError: `needs_key` and the key is missing or wrong.
            PermissionDeniedError: `needs_key` and the key may not do this.
        """
        response = self._retries.run(lambda: self._get_once(path))
        if needs_key and response.status_code in {401, 403}:
            raise self._refusal(path, response)
        try:
            value = response.json() if response.is_success else None
        except (json.JSONDecodeError, UnicodeDecodeError):
            return None
        return value if isinstance(value, dict) else None

    def find_text(self, path: str) -> str | None:
        """GET a text such as `/metrics`; None when the server has no such route or keeps it for others.

        Raises:
            UnreachableError: nothing answers at the address.
            UnavailableError: it is over its limits, or its gateway does not reach it.
        """
        response = self._retries.run(lambda: self._get_once(path))
        return response.text if response.is_success else None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST a JSON object, again while the failure is one that passes.

        Raises:
            TauscopeError: the server's refusal in our terms, or `UnreachableError`.
        """
        return self._retries.run(lambda: self.post_once(path, body))

    def trigger(self, path: str) -> bool:
        """POST nothing, for what it does; whether the server did it. A server without the route does not.

        Raises:
            UnreachableError: nothing answers at the address.
        """
        try:
            return self._client.post(path).is_success
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def post_once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST without retries."""
        try:
            response = self._client.post(path, json=body)
        except httpx.TimeoutException as error:
            if isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
                raise self._unreachable(error) from error
            raise DeadlineError(f"{self.url}{path}: no answer in time", ErrorCode.DEADLINE_EXCEEDED) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise self._refusal(path, response)
        try:
            value = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            value = None
        if not isinstance(value, dict):
            raise InternalError(f"{self.url}{path}: the answer is not a JSON object", ErrorCode.UNEXPECTED_ANSWER)
        return value

    def _get_once(self, path: str) -> httpx.Response:
        """GET without retries; any status but those that pass is an answer.

        A 500 is an answer too: some servers give it for a description that they cannot make, and would again.
        """
        try:
            response = self._client.get(path, timeout=CONNECT_TIMEOUT_S)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.status_code in _PASSING:
            raise self._refusal(path, response)
        return response

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no reference server answers at {self.url} ({type(error).__name__}); is it running, is the port right?",
            details={"url": self.url},
        )

    def _refusal(self, path: str, response: httpx.Response) -> TauscopeError:
        status = response.status_code
        said = _error_text(response)
        text = f"{self.url}{path} answered {status}: {said}"
        if status == 401:
            return AuthenticationError(f"{text}; give the server's key with --reference-key", ErrorCode.KEY_UNKNOWN)
        if status == 403:
            return PermissionDeniedError(text)
        if status in {404, 405}:
            return NotFoundError(text, ErrorCode.ROUTE_UNKNOWN)
        if status == 429:
            return QuotaError(text, retry_after_s=_retry_after_s(response))
        if status >= 500:
            return UnavailableError(
                text, ErrorCode.NOT_READY, retry_after_s=_retry_after_s(response), details={"status": status}
            )
        if any(words in said.lower() for words in _TOO_LONG_WORDS):
            return RequestError(text, ErrorCode.PROMPT_TOO_LONG)
        return RequestError(text)


def _error_text(response: httpx.Response) -> str:
    """The server's own message, shortened; never the part of a validation error that repeats the request."""
    try:
        value = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return response.text.strip().split("\n", maxsplit=1)[0][:_MESSAGE_CHARS] or response.reason_phrase
    if isinstance(value, dict):
        inner = value.get("error", value)
        if isinstance(inner, dict):
            inner = inner.get("message", inner.get("detail", ""))
        if isinstance(inner, list):
            inner = "; ".join(
                f"{'.'.join(map(str, item.get('loc', [])))}: {item.get('msg', '')}"
                for item in inner
                if isinstance(item, dict)
            )
        if isinstance(inner, str) and inner:
            inner = inner.partition("'input':")[0]  # llama-cpp-python prints a whole validation error
            return " ".join(inner.split())[:_MESSAGE_CHARS]
    return response.reason_phrase


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
