"""The shell scripts that run on the ends: POSIX sh with coreutils (or busybox). Pure text, no state."""

import shlex
from collections.abc import Iterable

from tauscope_client.ship.content import Stored

__all__ = [
    "BLOCK_BYTES",
    "finish",
    "folder_of",
    "hash_ranges",
    "list_files",
    "look",
    "make_folder",
    "quoted",
    "read_ranges",
    "start_over",
    "stat_kind",
    "stat_size",
    "write_from",
]

BLOCK_BYTES = 1 << 20
"""Block of `dd`: a transfer goes on at a multiple of it, because `seek=` counts blocks everywhere."""

_HASH = (
    "h() { if command -v sha256sum >/dev/null 2>&1; then sha256sum; "
    "elif command -v shasum >/dev/null 2>&1; then shasum -a 256; else openssl dgst -sha256 -r; fi; }\n"
)


def quoted(path: str) -> str:
    """A path as one word of the shell that no program takes for an option."""
    return shlex.quote(path if path.startswith("/") else f"./{path}")


def stat_kind(path: str) -> str:
    """Prints `file`, `folder` or `missing`."""
    return (
        f"if [ -d {quoted(path)} ]; then echo folder; elif [ -f {quoted(path)} ]; then echo file; else echo missing; fi"
    )


def stat_size(path: str) -> str:
    """Prints size and modification time of a file, or `missing`."""
    return f"if [ -f {quoted(path)} ]; then stat -L -c '%s %Y' {quoted(path)}; else echo missing; fi"


def list_files(folder: str) -> str:
    """Prints `size mtime ./relative/path` for every file below; links are followed, as caches of the hub are links."""
    return f"cd {quoted(folder)} && find -L . -type f -exec stat -L -c '%s %Y %n' {{}} +"


def read_ranges(path: str, ranges: Iterable[Stored]) -> str:
    """Prints ranges of a file, one after the other."""
    return _each_range(path, ranges, 'tail -c +"$1" "$f" | head -c "$2"')


def hash_ranges(path: str, ranges: Iterable[Stored]) -> str:
    """Prints the SHA-256 of each range on a line of its own, then the facts of the file (see `stat_size`)."""
    return _HASH + _each_range(path, ranges, 'tail -c +"$1" "$f" | head -c "$2" | h') + stat_size(path)


def _each_range(path: str, ranges: Iterable[Stored], action: str) -> str:
    check = '[ -r "$f" ] || { echo "cannot read $f" >&2; exit 1; }'
    calls = [f"r {r.offset + 1} {r.nbytes}" for r in ranges]
    return "\n".join([f"f={quoted(path)}", check, f"r() {{ {action}; }}", *calls, ""])


def make_folder(path: str) -> str:
    """Makes a folder and those above it."""
    return f"mkdir -p {quoted(path)}"


def look(path: str, part: str) -> str:
    """Prints three lines: facts of a file and of its part (see `stat_size`), and the free KiB of their file system."""
    free = f"df -Pk {quoted(folder_of(path))} | tail -n 1 | awk '{{print $4}}'"
    return "\n".join([stat_size(path), stat_size(part), free])


def folder_of(path: str) -> str:
    """The folder that holds a path."""
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def start_over(path: str) -> str:
    """Empties a file."""
    return f": > {quoted(path)}"


def write_from(path: str, block: int) -> str:
    """Writes its input into a file from a block on, keeping what comes before.

    At an absolute place: what a broken connection may still deliver late lands where the same bytes belong anyway.
    """
    return f"dd of={quoted(path)} bs={BLOCK_BYTES} seek={block} conv=notrunc"


def finish(part: str, path: str) -> str:
    """Makes the data durable, then gives the file its name in one step."""
    return f"{{ sync {quoted(part)} 2>/dev/null || sync; }} && mv -f {quoted(part)} {quoted(path)}"
