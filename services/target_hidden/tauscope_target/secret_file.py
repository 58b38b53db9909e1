"""The secret that handles are keyed with, in a file: several processes that share it agree on their handles."""

import contextlib
import os
import secrets
from pathlib import Path

from tauscope_target.tensor_file import TEMPORARY_SUFFIX

SECRET_BYTES = 32


def kept_secret(folder: Path) -> bytes:
    """The secret of a folder, made if there is none yet; equal requests find their handles after a restart.

    Raises:
        OSError: the folder cannot be written, or the file not be read.
    """
    file = folder / "secret"
    while not file.exists():
        temporary = folder / f".secret.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(secrets.token_bytes(SECRET_BYTES))
        # Unlike a rename, a link lets the first of several processes win. The temporary file may be gone: another
        # process that has just started tidies up.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(temporary, file)
        temporary.unlink(missing_ok=True)
    return file.read_bytes()
