"""Checkpoints in a folder: which there are, and which are finished being written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Checkpoint", "find_checkpoints", "finished"]

FILE_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
WEIGHTS = ("*.safetensors", "*.pt", "*.pth", "*.bin")

# What the drafter service takes as a name.
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 64


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        name: for the drafter service and the leaderboard.
        path: file or folder.
        step: the last number in its name, None without one.
        state: size and time of every file of it; it is finished when this stands still.
    """

    name: str
    path: Path
    step: int | None
    state: tuple[tuple[str, int, int], ...]


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Checkpoints directly in a folder, by step, then by name.

    A checkpoint is a file of weights, or a folder with weights in it. Hidden names and files that writers use before
    they rename (`.tmp`, `.part`) are not.
    """
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            files = sorted(path.rglob("*"))
            has_weights = any(file.match(pattern) for file in files for pattern in WEIGHTS)
            if not has_weights:
                continue
        elif path.name.endswith(FILE_ENDINGS):
            files = [path]
        else:
            continue
        state = tuple((str(f.relative_to(folder)), *_state_of(f)) for f in files if f.is_file())
        found.append(Checkpoint(_name_of(path), path, _step_of(path), state))
    return sorted(found, key=lambda one: (one.step is None, one.step or 0, one.name))


def finished(before: Mapping[str, Checkpoint], now: list[Checkpoint]) -> list[Checkpoint]:
    """Those that have not changed since an earlier look: nobody writes them any more."""
    return [one for one in now if one.name in before and before[one.name].state == one.state]


def _state_of(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except FileNotFoundError:  # renamed while we looked
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _name_of(path: Path) -> str:
    stem = path.stem if path.is_file() else path.name
    name = _UNFIT.sub("-", stem).strip("-._")[:_MAX_NAME]
    return name or "checkpoint"


def _step_of(path: Path) -> int | None:
    numbers = re.findall(r"\d+", path.stem if path.is_file() else path.name)
    return int(numbers[-1]) if numbers else None
