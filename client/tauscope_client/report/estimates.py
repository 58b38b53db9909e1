"""What `tauscope speed` and `tauscope expect` left in the run folder, as rows of one table."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tauscope_client.metrics import DEFINITIONS
from tauscope_client.runs.comparison import number
from tauscope_client.runs.loading import Run
from tauscope_client.speed_estimates import SPEED_SCHEMA

__all__ = ["SPEED_FILE", "EstimateRow", "estimate_notes", "estimate_rows"]

SPEED_FILE = "speed.json"

EstimateRow = tuple[str, tuple[str, ...], str]
"""Label, one cell a drafter, definition."""


def estimate_rows(run: Run, names: Sequence[str]) -> tuple[EstimateRow, ...]:
    """The rows; none when nobody asked for estimates. A file that is not ours or is torn is left out."""
    rows: list[EstimateRow] = []
    speed = _read(run, SPEED_FILE)
    if speed.get("schema") == SPEED_SCHEMA:
        definition = DEFINITIONS["speed_up_estimate"]
        bound = "below " if speed["is_upper_bound"] else ""
        cells = tuple(bound + _cell(speed["drafters"].get(name), "speed_up") for name in names)
        rows.append((f"speed-up over plain decoding, {speed['holds']}", cells, definition))
        drafts = [(speed["drafters"].get(name) or {}).get("draft") for name in names]
        rows.append(("cost of one draft", tuple("–" if one is None else _cost(one) for one in drafts), definition))
        for label, key in (("cost of a plain step of the target", "step"), ("cost of a verification", "verification")):
            rows.append((label, (_cost(speed[key]), *[""] * (len(names) - 1)), definition))
    for path in sorted(run.path.glob("expected-*.json")):
        found = _read(run, path.name)
        if found.get("schema") != "tauscope.expectation/1":
            continue
        sampling = found["sampling"]
        limits = ", ".join(
            [f"top_k {sampling['top_k']}"] * bool(sampling["top_k"])
            + [f"top_p {sampling['top_p']:g}"] * (sampling["top_p"] < 1)
        )
        settings = f"temperature {sampling['temperature']:g}" + (f", {limits}" if limits else "")
        for how in ("sampled", "greedy"):
            key = f"expected_tau_{how}"
            cells = tuple(_cell((found["drafters"].get(name) or {}).get(key), "estimate") for name in names)
            rows.append((f"expected tau, {how} drafts ({settings})", cells, DEFINITIONS[key]))
    return tuple(rows)


def estimate_notes(run: Run) -> tuple[str, ...]:
    """Where the costs of an estimated speed-up come from, and what spoils it."""
    speed = _read(run, SPEED_FILE)
    if speed.get("schema") != SPEED_SCHEMA:
        return ()
    drafts = dict.fromkeys(one["draft"]["words"] for one in speed["drafters"].values())
    costs = [f"target step {speed['step']['words']}", *(f"draft {words}" for words in drafts)]
    costs.append(f"verification {speed['verification']['words']}")
    return (f"Costs of the estimated speed-up: {'; '.join(costs)}.", *(f"{one}." for one in speed["cautions"]))


def _cost(cost: Mapping[str, Any]) -> str:
    return f"{cost['ms']:.3g} ms {cost['origin']}"


def _read(run: Run, name: str) -> dict[str, Any]:
    try:
        value = json.loads((run.path / name).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _cell(found: Mapping[str, Any] | None, key: str) -> str:
    if found is None or found.get(key) is None:
        return "–"
    text = number(found[key])
    if found.get("low") is None or found.get("high") is None:
        return text
    return f"{text} ({found['low']:.2f} to {found['high']:.2f})"
