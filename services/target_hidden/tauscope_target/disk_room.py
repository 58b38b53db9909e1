"""Whether a disk that refused bytes would take them now."""

import contextlib
import os
import secrets
from pathlib import Path

from tauscope_target.tensor_file import TEMPORARY_SUFFIX

PROBE_BYTES = 64 << 20
"""Most that is reserved to find out: readiness is asked every few seconds and must answer at once."""


def has_room(folder: Path, nbytes: int) -> bool:
    """Reserve space for a moment, which also finds what free bytes do not tell: quotas, a disk gone read-only.

    Args:
        folder: where files are written.
        nbytes: size of the file that was refused.
    """
    probe = folder / f".room.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    try:
        status = os.statvfs(folder)
        if status.f_bavail * status.f_frsize < nbytes:
            return False
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, max(1, min(nbytes, PROBE_BYTES)))
        finally:
            os.close(descriptor)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return True
