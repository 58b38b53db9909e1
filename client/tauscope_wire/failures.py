"""Turns what comes instead of an answer into the exceptions of `errors`: error bodies, foreign answers, no answer."""

from collections.abc import Mapping
from typing import Final

import httpx
from pydantic import ValidationError

from tauscope_wire import errors
from tauscope_wire.errors import ErrorCode, RetryableError, TauscopeError, UnreachableError, WireError
from tauscope_wire.messages import ErrorBody, ErrorInfo

__all__ = ["broken_connection", "error_of", "foreign_answer"]

_BY_STATUS: Final[Mapping[int, type[TauscopeError]]] = {
    400: errors.MalformedBodyError,
    401: errors.AuthenticationError,
    403: errors.PermissionDeniedError,
    404: errors.NotFoundError,
    405: errors.RequestError,
    409: errors.MismatchError,
    410: errors.GoneError,
    413: errors.TooLargeError,
    422: errors.RequestError,
    429: errors.QuotaError,
    500: errors.InternalError,
    503: errors.UnavailableError,
    504: errors.DeadlineError,
}

_BY_CODE: Final[Mapping[ErrorCode, type[TauscopeError]]] = {
    **dict.fromkeys(
        (
            ErrorCode.CHECKPOINT_MISSING,
            ErrorCode.CHECKPOINT_CORRUPT,
            ErrorCode.CHECKPOINT_UNSAFE,
            ErrorCode.CHECKPOINT_UNSUPPORTED,
            ErrorCode.CHECKPOINT_AMBIGUOUS,
            ErrorCode.CONFIG_INCOMPLETE,
            ErrorCode.TENSOR_MISSING,
            ErrorCode.TENSOR_UNEXPECTED,
            ErrorCode.TENSOR_SHAPE,
            ErrorCode.REFERENCE_KERNELS_REFUSED,
        ),
        errors.CheckpointError,
    ),
    **dict.fromkeys(
        (
            ErrorCode.BODY_TRUNCATED,
            ErrorCode.BODY_TRAILING,
            ErrorCode.BODY_CORRUPT,
            ErrorCode.CHECKSUM_MISMATCH,
            ErrorCode.NON_FINITE_PAYLOAD,
            ErrorCode.LABEL_MISMATCH,
            ErrorCode.SCHEMA_UNKNOWN,
        ),
        WireError,
    ),
    **dict.fromkeys((ErrorCode.UNREACHABLE, ErrorCode.TIMED_OUT, ErrorCode.UNEXPECTED_ANSWER), UnreachableError),
}
"""Codes that share a status with others; a service passes on what its own upstream did (502)."""

_KNOWN_CODES: Final[Mapping[str, ErrorCode]] = {code.value: code for code in ErrorCode}

_MAX_SHOWN: Final = 80

_NOT_OURS: Final = (
    "this is no answer of tauscope; check the port (by default 30010 is the target service, 30020 the drafter service, "
    "30000 SGLang) and that no proxy answers in its place"
)


def error_of(response: httpx.Response, body: bytes, where: str) -> TauscopeError:
    """The exception for an answer with an error status.

    Args:
        response: its status and headers.
        body: what came of its body (empty after HEAD).
        where: `GET http://...`, for messages.

    Returns:
        The exception that the service raised, by code and status; `details` has `status` and `request_id`. An
        UnreachableError (`unexpected_answer`) when the body is not an error body of tauscope.
    """
    status = response.status_code
    try:
        info = ErrorBody.model_validate_json(body).error
    except ValidationError:
        if body or status not in _BY_STATUS:
            return foreign_answer(response, where)
        info = ErrorInfo(code="", message=f"{where} answered {status} {response.reason_phrase}")
    code = _KNOWN_CODES.get(info.code)
    kind = _BY_STATUS.get(status, errors.InternalError)
    if code is not None:
        kind = _BY_CODE.get(code, kind)
    details = {**info.details, "status": status}
    if info.request_id:
        details["request_id"] = info.request_id
    if code is None and info.code:
        details["code"] = info.code  # of a newer service
    if issubclass(kind, RetryableError):
        return kind(info.message, code, retry_after_s=_retry_after_s(response), details=details)
    return kind(info.message, code, details=details)


def foreign_answer(response: httpx.Response, where: str, problem: str = "") -> UnreachableError:
    """The exception for an answer that no tauscope service gives."""
    kind = response.headers.get("content-type", "no content type")[:_MAX_SHOWN]
    moved = response.headers.get("location", "")[:_MAX_SHOWN]
    what = (
        f"{response.status_code} with {kind}" + (f", to {moved}" if moved else "") + (f": {problem}" if problem else "")
    )
    return UnreachableError(
        f"{where} answered {what}; {_NOT_OURS}",
        ErrorCode.UNEXPECTED_ANSWER,
        details={"status": response.status_code, "content_type": kind},
    )


def broken_connection(error: httpx.TransportError, where: str, base_url: str) -> UnreachableError:
    """The exception for an exchange that did not get as far as an answer; says what to check."""
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.PoolTimeout):
        return UnreachableError(f"{where}: {reason}; lower the concurrency", ErrorCode.TIMED_OUT)
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return UnreachableError(
            f"{where}: {reason}; the service is busy or hangs: see {base_url}/healthz, or allow more time",
            ErrorCode.TIMED_OUT,
        )
    if isinstance(error, httpx.RemoteProtocolError) and "not an HTTP answer" in reason:
        return UnreachableError(f"{where}: {reason}; {_NOT_OURS}", ErrorCode.UNEXPECTED_ANSWER)
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        port = httpx.URL(base_url).port
        tunnel = f"; from another machine: ssh -N -L {port}:127.0.0.1:{port} BOX" if port else ""
        return UnreachableError(
            f"{where}: {reason}; check that the service runs (tauscope-target, tauscope-drafter), its host and port"
            + tunnel
        )
    return UnreachableError(f"{where}: {reason}; the service may have been restarted: see its log, then try again")


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "")))
    except ValueError:
        return 1.0  # also for the date form, which our services do not send
