"""Who calls: API keys are looked up by their hash, compared in constant time, and reloaded when their file changes."""

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tauscope_serving.keyfile import (
    ALL_ROLES,
    KeyFile,
    KeyQuota,
    KeyRecord,
    KeyRole,
    add_key,
    digest_of,
    read_key_file,
    revoke_key,
)
from tauscope_wire.errors import AuthenticationError, ErrorCode, PermissionDeniedError, RequestError

__all__ = [
    "ALL_ROLES",
    "KeyQuota",
    "KeyRole",
    "Keyring",
    "Principal",
    "add_key",
    "read_key_file",
    "revoke_key",
]

log = logging.getLogger(__name__)


class Principal(BaseModel):
    """On whose behalf a request runs."""

    model_config = ConfigDict(frozen=True)

    name: str
    roles: tuple[KeyRole, ...]
    handle_secret: Annotated[str, Field(repr=False)]
    quota: KeyQuota = KeyQuota()

    @property
    def tag(self) -> str:
        """Names this key, and no later one of the same name; tells nothing about it. For what keys must not share."""
        return hashlib.sha256(f"tag:{self.handle_secret}".encode()).hexdigest()[:16]

    def require(self, role: KeyRole) -> None:
        """Raise unless the key has the role (`admin` has all).

        Raises:
            PermissionDeniedError: names the role that is missing and the roles that are there.
        """
        if role not in self.roles and "admin" not in self.roles:
            raise PermissionDeniedError(
                f"role {role!r} needed: this key has {', '.join(self.roles) or 'none'}; ask the operator for another",
                details={"needed": role, "roles": list(self.roles)},
            )


class Keyring:
    """Finds the principal of a request; without a file everybody is the local principal with all roles.

    Args:
        path: the keys file, or None.
        clock: monotonic seconds.
        compare: equality in constant time.
    """

    RELOAD_INTERVAL_S = 1.0
    """Revocation takes effect within this time; checking the file on each request would cost a system call each."""

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        compare: Callable[[str, str], bool] = hmac.compare_digest,
    ) -> None:
        self._path = path
        self._compare = compare
        self._clock = clock
        self._lock = threading.Lock()
        self._content = KeyFile()
        self._stamp: tuple[int, int, int] | None = None
        self._checked = float("-inf")
        self._local = Principal(name="local", roles=ALL_ROLES, handle_secret=secrets.token_hex(32))

    @property
    def is_open(self) -> bool:
        """Whether requests need no key."""
        return self._path is None

    def principal(self, headers: Mapping[str, str]) -> Principal:
        """The principal of a request from its `Authorization: Bearer KEY` header.

        Raises:
            AuthenticationError: no key (`key_required`) or not a known one (`key_unknown`).
        """
        if self._path is None:
            return self._local
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationError("an API key is required: send 'Authorization: Bearer KEY'")
        digest = digest_of(key.strip())
        found: KeyRecord | None = None
        for record in self._records():  # every record is compared, so that time tells nothing about which one matched
            if self._compare(record.sha256, digest):
                found = record
        if found is None:
            raise AuthenticationError("the API key is not known here", ErrorCode.KEY_UNKNOWN)
        return Principal(name=found.name, roles=found.roles, handle_secret=found.handle_secret, quota=found.quota)

    def _records(self) -> tuple[KeyRecord, ...]:
        assert self._path is not None
        with self._lock:
            now = self._clock()
            if now - self._checked >= self.RELOAD_INTERVAL_S:
                self._checked = now
                self._reload(self._path)
            return self._content.keys

    def _reload(self, path: Path) -> None:
        """Take over a changed file. A removed one revokes all keys; a broken one keeps those that were good."""
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp and stamp is not None:
            return
        try:
            self._content = read_key_file(path) if stamp is not None else KeyFile()
        except RequestError as error:
            log.error("the keys of before stay valid: %s", error)
        self._stamp = stamp
