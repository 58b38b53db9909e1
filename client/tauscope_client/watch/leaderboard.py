"""What came out of every checkpoint so far: a ranking, a curve over steps, and how each stands against the best."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tauscope_client.runs.files import write_json, write_text

__all__ = ["Entry", "best_of", "leaderboard_markdown", "read_entries", "write_leaderboard"]

SCHEMA = "tauscope.leaderboard/1"


@dataclass(frozen=True)
class Entry:
    """One checkpoint.

    Attributes:
        name: of the checkpoint.
        step: the number in its name.
        path: where it was.
        state: what its files looked like; another state is another checkpoint.
        run: run folder beside the leaderboard, None when it failed.
        tau: the headline.
        low: lower end of its interval.
        high: upper end.
        num_prompts: prompts it was measured on.
        against_best: paired difference to the best checkpoint before it, in words; empty for the first.
        failure: why it has no number, else empty.
    """

    name: str
    step: int | None
    path: str
    state: str
    run: str | None = None
    tau: float | None = None
    low: float | None = None
    high: float | None = None
    num_prompts: int = 0
    against_best: str = ""
    failure: str = ""


def read_entries(folder: Path) -> list[Entry]:
    """Entries of an earlier watch; none when there was none."""
    path = folder / "leaderboard.json"
    if not path.exists():
        return []
    value: dict[str, Any] = json.loads(path.read_bytes())
    return [Entry(**entry) for entry in value["entries"]]


def write_leaderboard(folder: Path, entries: Sequence[Entry]) -> None:
    """Write `leaderboard.json` and `leaderboard.md`."""
    write_json(folder / "leaderboard.json", {"schema": SCHEMA, "entries": [asdict(entry) for entry in entries]})
    write_text(folder / "leaderboard.md", leaderboard_markdown(entries))


def best_of(entries: Sequence[Entry]) -> Entry | None:
    """The entry with the highest tau."""
    known = [entry for entry in entries if entry.tau is not None]
    return max(known, key=lambda entry: entry.tau or 0.0, default=None)


def leaderboard_markdown(entries: Sequence[Entry]) -> str:
    """The ranking as a table, best first, failures last."""
    ranked = sorted(entries, key=lambda entry: (entry.tau is None, -(entry.tau or 0.0)))
    lines = ["# Leaderboard", "", "| checkpoint | step | tau | 95 % interval | against the best before it |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    for entry in ranked:
        ends = "–" if entry.low is None or entry.high is None else f"{entry.low:.2f} to {entry.high:.2f}"
        tau = "–" if entry.tau is None else f"{entry.tau:.3f}"
        said = (entry.failure or entry.against_best).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {entry.name} | {'–' if entry.step is None else entry.step} | {tau} | {ends} | {said} |")
    return "\n".join(lines) + "\n"
