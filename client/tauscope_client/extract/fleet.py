"""One or several target services with the same model: every request goes where the fewest tokens are in work."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from tauscope_client.target import TargetClient
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError, RetryableError, UnreachableError
from tauscope_wire.messages import TargetInfo

__all__ = ["Fleet"]

REST_S = 10.0
"""A service that could not be reached, or was full, is left alone for so long while others can answer."""


@dataclass
class _Member:
    client: TargetClient
    tokens: int = 0
    rests_until_s: float = field(default=float("-inf"))


class Fleet:
    """Spreads requests over targets. Safe to use from several threads."""

    def __init__(
        self,
        clients: Sequence[TargetClient],
        *,
        mixed_numerics: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask every target what it is.

        Raises:
            RequestError: no target, or one twice.
            MismatchError: they serve different models, or compute in different ways and that was not allowed.
        """
        urls = [client.url for client in clients]
        if not urls or len(set(urls)) < len(urls):
            raise RequestError(f"--target: {', '.join(urls) or 'none'}; give one address or several different ones")
        self.info: TargetInfo = clients[0].info()
        self.max_tokens = min(client.info().limits.max_tokens for client in clients)
        self.max_answer_bytes = min(client.info().limits.max_answer_bytes for client in clients)
        for client in clients[1:]:
            _check_same(self.info, urls[0], client, mixed_numerics)
        self._members = [_Member(client) for client in clients]
        self._clock = clock
        self._lock = Lock()
        self._turn = 0

    @contextmanager
    def take(self, num_tokens: int) -> Iterator[TargetClient]:
        """The target with the fewest tokens in work, for a request of `num_tokens`; those at rest come last."""
        with self._lock:
            now_s = self._clock()
            # Among equals they take turns: an idle fleet that is asked one thing at a time is used evenly.
            self._turn += 1
            order = self._members[self._turn % len(self._members) :] + self._members[: self._turn % len(self._members)]
            member = min(order, key=lambda one: (one.rests_until_s > now_s, one.tokens))
            member.tokens += num_tokens
        try:
            yield member.client
        except (UnreachableError, RetryableError):
            member.rests_until_s = self._clock() + REST_S
            raise
        finally:
            with self._lock:
                member.tokens -= num_tokens


def _check_same(first: TargetInfo, first_url: str, client: TargetClient, mixed_numerics: bool) -> None:
    other = client.info()
    if (first.model.revision, first.model.config_sha256) != (other.model.revision, other.model.config_sha256):
        raise MismatchError(
            f"{client.url} serves {other.model.id} ({other.model.revision}), {first_url} serves {first.model.id} "
            f"({first.model.revision}): one data set comes from one model",
            ErrorCode.TARGET_MISMATCH,
        )
    if first.numerics != other.numerics and not mixed_numerics:
        mine, theirs = first.numerics.model_dump(), other.numerics.model_dump()
        fields = ", ".join(f"{key} {mine[key]!r} / {theirs[key]!r}" for key in mine if mine[key] != theirs.get(key))
        raise MismatchError(
            f"{first_url} and {client.url} compute in different ways ({fields}); allow it with --mixed-numerics",
            ErrorCode.NUMERICS_MISMATCH,
        )
