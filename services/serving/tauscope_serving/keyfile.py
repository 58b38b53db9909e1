"""The keys file: hashes of API keys with their roles and quotas, changed by `keys add` and `keys revoke`.

A key is 32 random bytes, so one plain SHA-256 is as hard to invert as the key is to guess; no slow hash is needed. The
file never holds a key. Each key also has a random secret of its own, from which its handles are derived.
"""

import fcntl
import hashlib
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tauscope_wire.errors import RequestError

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
    handle_secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
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
    except OSError as error:
        raise RequestError(f"{path}: cannot read the keys file ({error.strerror})") from None
    try:
        return KeyFile.model_validate_json(raw)
    except ValidationError as error:
        raise RequestError(
            f"{path}: not a keys file ({error.error_count()} problems); restore it or remove it"
        ) from None


def _write_key_file(path: Path, content: KeyFile) -> None:
    """Replace the file in one step; an existing one keeps its owner and mode, so that its service can still read it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:  # mkstemp creates it readable by its owner only
        if path.exists():
            status = path.stat()
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
        json.dump(content.model_dump(), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)


@contextmanager
def _editing(path: Path) -> Iterator[KeyFile]:
    """The content of the file, while no other process changes it.

    Raises:
        RequestError: the folder or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield read_key_file(path)
    except OSError as error:
        raise RequestError(f"{path}: cannot change the keys file ({error.strerror})") from None


def add_key(path: Path, name: str, *, roles: tuple[KeyRole, ...], quota: KeyQuota | None = None) -> str:
    """Create a key and store its hash.

    Returns:
        The key itself, which is shown once and stored nowhere.

    Raises:
        RequestError: the name is taken or not a name.
    """
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    try:
        record = KeyRecord(
            name=name,
            sha256=digest_of(key),
            roles=roles,
            handle_secret=secrets.token_hex(32),
            quota=quota or KeyQuota(),
            created_unix_s=time.time(),
        )
    except ValidationError:
        raise RequestError(f"key name {name!r}: use 1 to 64 letters, digits, '.', '_' or '-'") from None
    with _editing(path) as content:
        if any(known.name == name for known in content.keys):
            raise RequestError(f"key {name!r}: the name is taken in {path}; revoke it first or choose another")
        _write_key_file(path, KeyFile(keys=(*content.keys, record)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a key by name.

    Raises:
        RequestError: no key has that name.
    """
    with _editing(path) as content:
        left = tuple(record for record in content.keys if record.name != name)
        if len(left) == len(content.keys):
            known = ", ".join(record.name for record in content.keys) or "none"
            raise RequestError(f"key {name!r}: not in {path} (known: {known})")
        _write_key_file(path, KeyFile(keys=left))


def digest_of(key: str) -> str:
    """SHA-256 of a key, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()
