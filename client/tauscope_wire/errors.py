"""The exceptions of tauscope and the stable codes that travel over HTTP.

    TauscopeError
    ├── RequestError             the request is wrong                                (422)
    │   └── MalformedBodyError   the body is not JSON/msgpack of the right shape     (400)
    ├── AuthenticationError      no key, or an unknown one                           (401)
    ├── PermissionDeniedError    the key may not do this                             (403)
    ├── NotFoundError            a name that does not exist                          (404)
    ├── GoneError                a handle that is gone or was never there            (410)
    ├── MismatchError            drafter and target do not fit, numerics not allowed (409)
    ├── TooLargeError            over a limit of the service                         (413)
    ├── QuotaError               over a quota of the key, retry later                (429)
    ├── UnavailableError         full, draining or not ready, retry later            (503)
    ├── DeadlineError            not done in time                                    (504)
    ├── InternalError            a defect or a lost device                           (500)
    ├── CheckpointError          a file on disk cannot be used                       (422, or exit code at start-up)
    ├── WireError                a body that breaks SPEC.md, found by the reader
    └── UnreachableError         no service answers at the address

The HTTP statuses are assigned in one table at the edge (`tauscope_serving.errors`), not here.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

__all__ = [
    "AuthenticationError",
    "CheckpointError",
    "DeadlineError",
    "ErrorCode",
    "GoneError",
    "InternalError",
    "MalformedBodyError",
    "MismatchError",
    "NotFoundError",
    "PermissionDeniedError",
    "QuotaError",
    "RequestError",
    "RetryableError",
    "TauscopeError",
    "TooLargeError",
    "UnavailableError",
    "UnreachableError",
    "WireError",
]


class ErrorCode(StrEnum):
    """Stable codes: a code never changes its meaning; new ones are added."""

    # the request
    MALFORMED_BODY = "malformed_body"
    INVALID_REQUEST = "invalid_request"
    EMPTY_PROMPT = "empty_prompt"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"  # noqa: S105
    LAYER_OUT_OF_RANGE = "layer_out_of_range"
    DUPLICATE_LAYER = "duplicate_layer"
    POSITION_OUT_OF_RANGE = "position_out_of_range"
    ANCHOR_OUT_OF_RANGE = "anchor_out_of_range"
    CHAT_TEMPLATE_FAILED = "chat_template_failed"
    NOT_SUPPORTED = "not_supported"
    # limits and access
    PROMPT_TOO_LONG = "prompt_too_long"
    BODY_TOO_LARGE = "body_too_large"
    ANSWER_TOO_LARGE = "answer_too_large"
    LIMIT_EXCEEDED = "limit_exceeded"
    KEY_REQUIRED = "key_required"
    KEY_UNKNOWN = "key_unknown"
    ROLE_REQUIRED = "role_required"
    QUOTA_EXCEEDED = "quota_exceeded"
    # names and handles
    DRAFTER_UNKNOWN = "drafter_unknown"
    DRAFTER_EXISTS = "drafter_exists"
    HANDLE_GONE = "handle_gone"
    PATH_OUTSIDE_ROOTS = "path_outside_roots"
    ROUTE_UNKNOWN = "route_unknown"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    # drafter and target
    TARGET_MISMATCH = "target_mismatch"
    NUMERICS_MISMATCH = "numerics_mismatch"
    MODE_CANNOT = "mode_cannot"
    # the service
    QUEUE_FULL = "queue_full"
    NOT_READY = "not_ready"
    DRAINING = "draining"
    OUT_OF_MEMORY = "out_of_memory"
    STORE_FULL = "store_full"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    NON_FINITE_STATES = "non_finite_states"
    ZERO_STATES = "zero_states"
    KERNELS_CHANGED = "kernels_changed"
    INTERNAL = "internal"
    # checkpoints
    CHECKPOINT_MISSING = "checkpoint_missing"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_UNSAFE = "checkpoint_unsafe"
    CHECKPOINT_UNSUPPORTED = "checkpoint_unsupported"
    CHECKPOINT_AMBIGUOUS = "checkpoint_ambiguous"
    CONFIG_INCOMPLETE = "config_incomplete"
    TENSOR_MISSING = "tensor_missing"
    TENSOR_UNEXPECTED = "tensor_unexpected"
    TENSOR_SHAPE = "tensor_shape"
    REFERENCE_KERNELS_REFUSED = "reference_kernels_refused"
    # the reader
    BODY_TRUNCATED = "body_truncated"
    BODY_TRAILING = "body_trailing"
    BODY_CORRUPT = "body_corrupt"
    CHECKSUM_MISMATCH = "checksum_mismatch"
    NON_FINITE_PAYLOAD = "non_finite_payload"
    LABEL_MISMATCH = "label_mismatch"
    SCHEMA_UNKNOWN = "schema_unknown"
    # the client's side of the network
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    UNEXPECTED_ANSWER = "unexpected_answer"


class TauscopeError(Exception):
    """Base of all errors that tauscope raises on purpose.

    Attributes:
        code: stable code, see `ErrorCode`.
        message: what was wrong, the value, the bound, what to do; one line.
        details: JSON-ready facts for programs (never prompt text, never a key).
    """

    default_code = ErrorCode.INTERNAL

    def __init__(
        self, message: str, code: ErrorCode | None = None, *, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        return self.message


class RequestError(TauscopeError):
    """The request is wrong; sending it again unchanged cannot help."""

    default_code = ErrorCode.INVALID_REQUEST


class MalformedBodyError(RequestError):
    """The body is not JSON or msgpack, or not a map with the right fields."""

    default_code = ErrorCode.MALFORMED_BODY


class AuthenticationError(TauscopeError):
    """No API key was sent, or one that is not known."""

    default_code = ErrorCode.KEY_REQUIRED


class PermissionDeniedError(TauscopeError):
    """The key is known and may not do this."""

    default_code = ErrorCode.ROLE_REQUIRED


class NotFoundError(TauscopeError):
    """A name (drafter, route) that does not exist."""

    default_code = ErrorCode.DRAFTER_UNKNOWN


class GoneError(TauscopeError):
    """A handle that was evicted, deleted, or never existed: compute the request again."""

    default_code = ErrorCode.HANDLE_GONE


class MismatchError(TauscopeError):
    """Two things do not fit each other; `details` holds both sides."""

    default_code = ErrorCode.TARGET_MISMATCH


class TooLargeError(TauscopeError):
    """Over a limit that `/info` shows."""

    default_code = ErrorCode.LIMIT_EXCEEDED


class RetryableError(TauscopeError):
    """Base of the errors after which the same request may succeed later.

    Attributes:
        retry_after_s: seconds after which to try again.
    """

    def __init__(
        self,
        message: str,
        code: ErrorCode | None = None,
        *,
        retry_after_s: float = 1.0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, code, details=details)
        self.retry_after_s = retry_after_s


class QuotaError(RetryableError):
    """Over a quota of the API key."""

    default_code = ErrorCode.QUOTA_EXCEEDED


class UnavailableError(RetryableError):
    """The service is full, draining, or not ready."""

    default_code = ErrorCode.NOT_READY


class DeadlineError(TauscopeError):
    """The work was not done by its deadline; nothing of it is delivered."""

    default_code = ErrorCode.DEADLINE_EXCEEDED


class InternalError(TauscopeError):
    """A defect, or a device that failed."""

    default_code = ErrorCode.INTERNAL


class CheckpointError(TauscopeError):
    """A checkpoint on disk cannot be used; names file and tensor, expected and found."""

    default_code = ErrorCode.CHECKPOINT_CORRUPT


class WireError(TauscopeError):
    """A body that breaks SPEC.md: nothing of it may be used."""

    default_code = ErrorCode.BODY_CORRUPT


class UnreachableError(TauscopeError):
    """No service answers at the address, or the connection broke."""

    default_code = ErrorCode.UNREACHABLE
