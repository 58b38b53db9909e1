"""API keys: a file of hashes, reloaded when it changes, compared in constant time.

A key is 32 random bytes, so one plain SHA-256 is as hard to invert as the key is to guess; no slow hash is needed. The
file never holds a key. Each key also has a random secret of its own, from which its handles are derived.
"""

import hashlib
import hmac
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tauscope_wire.errors import AuthenticationError, ErrorCode, PermissionDeniedError, RequestError

KEY_PREFIX = "tsk_"
KeyRole = Literal["read", "extract", "draft", "admin"]
ALL_ROLES: tuple[KeyRole, ...] = ("read", "extract", "draft", "admin")


class KeyQuota(BaseModel):
    """Bounds of one key; None is unlimited. Rates are per minute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_min: Annotated[int, Field(ge=1)] | None = None
    tokens_per_min: Annotated[int, Field(ge=1)] | None = None
    bytes_per_min: Annotated[int, Field(ge=1)] | None = None
    concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    store_bytes: Annotated[int, Field(ge=0)] | None = None


class KeyRecord(BaseModel):
    """One key as stored: everything but the key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    roles: tuple[KeyRole, ...]
    handle_secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    quota: KeyQuota = KeyQuota()
    created_unix_s: float


class KeyFile(BaseModel):
    """Content of the keys file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    keys: tuple[KeyRecord, ...] = ()


def read_key_file(path: Path) -> KeyFile:
    """Read the file; an absent one holds no keys.

    Raises:
        RequestError: the file is not a keys file (names the path, never its content).
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return KeyFile()
    try:
        return KeyFile.model_validate_json(raw)
    except ValidationError as error:
        raise RequestError(
            f"{path}: not a keys file ({error.error_count()} problems); restore it or remove it"
        ) from None


def _write_key_file(path: Path, content: KeyFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:  # mkstemp creates it readable by its owner only
        json.dump(content.model_dump(), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)


def add_key(path: Path, name: str, *, roles: tuple[KeyRole, ...], quota: KeyQuota | None = None) -> str:
    """Create a key and store its hash.

    Returns:
        The key itself, which is shown once and stored nowhere.

    Raises:
        RequestError: the name is taken or not a name.
    """
    content = read_key_file(path)
    if any(record.name == name for record in content.keys):
        raise RequestError(f"key {name!r}: the name is taken in {path}; revoke it first or choose another")
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    try:
        record = KeyRecord(
            name=name,
            sha256=_digest(key),
            roles=roles,
            handle_secret=secrets.token_hex(32),
            quota=quota or KeyQuota(),
            created_unix_s=time.time(),
        )
    except ValidationError:
        raise RequestError(f"key name {name!r}: use 1 to 64 letters, digits, '.', '_' or '-'") from None
    _write_key_file(path, KeyFile(keys=(*content.keys, record)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a key by name.

    Raises:
        RequestError: no key has that name.
    """
    content = read_key_file(path)
    left = tuple(record for record in content.keys if record.name != name)
    if len(left) == len(content.keys):
        known = ", ".join(record.name for record in content.keys) or "none"
        raise RequestError(f"key {name!r}: not in {path} (known: {known})")
    _write_key_file(path, KeyFile(keys=left))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Principal(BaseModel):
    """On whose behalf a request runs."""

    model_config = ConfigDict(frozen=True)

    name: str
    roles: tuple[KeyRole, ...]
    handle_secret: str
    quota: KeyQuota = KeyQuota()

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
    """Finds the principal of a request; without a file everybody is the local principal with all roles."""

    RELOAD_INTERVAL_S = 1.0
    """Revocation takes effect within this time; checking the file on each request would cost a system call each."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._content = KeyFile()
        self._stamp: tuple[int, int] | None = None
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
        digest = _digest(key.strip())
        found: KeyRecord | None = None
        for record in self._records():  # every record is compared, so that time tells nothing about which one matched
            if hmac.compare_digest(record.sha256, digest):
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
                try:
                    status = self._path.stat()
                    stamp = (status.st_mtime_ns, status.st_ino)
                except FileNotFoundError:
                    stamp = (0, 0)
                if stamp != self._stamp:
                    self._content = read_key_file(self._path)
                    self._stamp = stamp
            return self._content.keys
