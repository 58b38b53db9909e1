"""What may go wrong with one prompt without ending the run, and what ends it."""

from dataclasses import asdict, dataclass
from typing import Any

from tauscope_wire.errors import DeadlineError, InternalError, RequestError, TauscopeError, TooLargeError

__all__ = ["Failure", "concerns_one_prompt"]


@dataclass(frozen=True)
class Failure:
    """A prompt that could not be evaluated.

    Attributes:
        id: the turn.
        stage: `reference`, `hidden`, or `draft <name>`.
        code: stable error code.
        message: what the service or the engine said.
    """

    id: str
    stage: str
    code: str
    message: str

    @classmethod
    def of(cls, turn_id: str, stage: str, error: TauscopeError) -> "Failure":
        """The failure that `error` is."""
        return cls(turn_id, stage, str(error.code), error.message)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def concerns_one_prompt(error: TauscopeError) -> bool:
    """Whether other prompts may still succeed: the request itself was at fault, or its batch or deadline."""
    return isinstance(error, (RequestError, TooLargeError, DeadlineError, InternalError))
