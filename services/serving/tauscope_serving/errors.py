"""The one table from domain errors to HTTP statuses, and the body every error answer has."""

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tauscope_wire import errors
from tauscope_wire.errors import ErrorCode, RequestError, RetryableError, TauscopeError
from tauscope_wire.messages import ErrorBody, ErrorInfo

STATUS: Mapping[type[TauscopeError], int] = {
    errors.MalformedBodyError: 400,
    errors.AuthenticationError: 401,
    errors.PermissionDeniedError: 403,
    errors.NotFoundError: 404,
    errors.MismatchError: 409,
    errors.GoneError: 410,
    errors.TooLargeError: 413,
    errors.RequestError: 422,
    errors.CheckpointError: 422,
    errors.QuotaError: 429,
    errors.InternalError: 500,
    errors.WireError: 502,
    errors.UnreachableError: 502,
    errors.UnavailableError: 503,
    errors.DeadlineError: 504,
}
"""Looked up along the exception's class hierarchy, nearest first. 502: the service's own upstream failed."""


MAX_FIELD_CHARS = 200
"""An unknown field is named in the error; its name comes from the caller and may be of any length."""


def status_of(error: TauscopeError) -> int:
    """HTTP status of a domain error."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def error_response(error: TauscopeError, request_id: str) -> JSONResponse:
    """The answer for a domain error, with `Retry-After` where trying again can help."""
    details = printable(error.details)
    info = ErrorInfo(code=error.code, message=printable(error.message), request_id=request_id, details=details)
    headers = {"X-Request-Id": request_id}
    if isinstance(error, RetryableError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, errors.AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(ErrorBody(error=info).model_dump(mode="json"), status_of(error), headers)


def printable(value: Any) -> Any:
    """`value` with what cannot be shown in one line escaped, in all its strings.

    Messages and details name fields and drafters as the caller wrote them: a line feed would break a log line in two,
    and half of a surrogate pair cannot be encoded at all.
    """
    if isinstance(value, str):
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    if isinstance(value, Mapping):
        return {printable(name): printable(one) for name, one in value.items()}
    return [printable(one) for one in value] if isinstance(value, list | tuple) else value


def install(app: FastAPI) -> None:
    """Make every failure of `app` answer with an error body; unexpected ones are for `record.RequestRecord`."""

    async def on_domain_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TauscopeError)
        request.state.error_code = str(error.code)
        return error_response(error, request_id(request))

    async def on_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = {
            HTTPStatus.NOT_FOUND: ErrorCode.ROUTE_UNKNOWN,
            HTTPStatus.METHOD_NOT_ALLOWED: ErrorCode.METHOD_NOT_ALLOWED,
        }.get(HTTPStatus(error.status_code), ErrorCode.INVALID_REQUEST)
        message = printable(f"{request.method} {request.url.path}: {error.detail}; the routes are listed at /docs")
        info = ErrorInfo(code=code, message=message, request_id=request_id(request))
        request.state.error_code = str(code)
        return JSONResponse(ErrorBody(error=info).model_dump(mode="json"), error.status_code, error.headers)

    async def on_bad_parameter(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return await on_domain_error(request, first_problem(error.errors()))

    app.add_exception_handler(TauscopeError, on_domain_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_bad_parameter)


def first_problem(problems: Sequence[Mapping[str, Any]]) -> RequestError:
    """One line that names the first wrong field; input values are left out, they may be prompt text."""
    problem = problems[0]
    field = ".".join(str(part) for part in problem["loc"])[:MAX_FIELD_CHARS] or "body"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    message = str(problem["msg"]).removeprefix("Value error, ")
    return RequestError(f"{field}: {message}{more}", details={"field": field, "kind": problem["type"]})


def request_id(request: Request) -> str:
    """Id of the request, set by the service's outermost middleware."""
    return str(getattr(request.state, "request_id", ""))
