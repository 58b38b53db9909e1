"""Two drafters side by side: of one run, or of two runs that may be compared at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tauscope_client.metrics import Comparison, compare
from tauscope_client.runs.conversations import by_conversation
from tauscope_client.runs.headline import is_sampled, kind_of_text
from tauscope_client.runs.loading import Run, load_run
from tauscope_client.runs.manifest import differences
from tauscope_client.runs.results import compared
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError

__all__ = ["Side", "SideBySide", "compare_sides", "parse_side", "reasons_against"]

_MAX_REASONS = 10


@dataclass(frozen=True)
class Side:
    """One drafter of one run."""

    run: Run
    drafter: str

    @property
    def label(self) -> str:
        """How people see it."""
        return f"{self.run.path.name}:{self.drafter}"


@dataclass(frozen=True)
class SideBySide:
    """A comparison and what stands against it.

    Attributes:
        before: the first drafter.
        after: the second.
        statistics: name -> paired comparison.
        reasons: why the two should not be compared; not empty only when it was forced.
    """

    before: Side
    after: Side
    statistics: Mapping[str, Comparison]
    reasons: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schema": "tauscope.comparison/1",
            "before": self.before.label,
            "after": self.after.label,
            "is_forced": bool(self.reasons),
            "reasons_against": list(self.reasons),
            "statistics": {name: found.to_dict() for name, found in self.statistics.items()},
        }


def parse_side(text: str) -> Side:
    """Read `RUN` (a run with one drafter) or `RUN:DRAFTER`.

    Raises:
        RequestError: no run there, or several drafters and none named.
        NotFoundError: the run has no such drafter.
    """
    path, colon, drafter = text.rpartition(":")
    if not colon or Path(text).is_dir():
        run = load_run(text)
        if len(run.drafters) != 1:
            names = ", ".join(f"{text}:{name}" for name in run.drafters)
            raise RequestError(f"{text}: the run has {len(run.drafters)} drafters, say which: {names}")
        return Side(run, run.drafters[0])
    run = load_run(path)
    return Side(run, run.check_drafter(drafter))


def compare_sides(before: Side, after: Side, *, is_forced: bool = False) -> SideBySide:
    """Compare two drafters, paired by prompt.

    Raises:
        MismatchError: the two cannot be compared, with every reason; or no prompt is shared.
    """
    kinds = [kind_of_text(side.run.results) for side in (before, after)]
    if kinds[0] != kinds[1]:
        raise MismatchError(
            f"{before.label} is over references that are {kinds[0]}, {after.label} over ones that are {kinds[1]}: "
            "their headlines are different quantities and are never compared, forced or not",
            ErrorCode.TARGET_MISMATCH,
        )
    reasons = reasons_against(before, after)
    if reasons and not is_forced:
        shown = "\n  ".join(reasons[:_MAX_REASONS])
        more = f"\n  and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
        raise MismatchError(
            f"{before.label} and {after.label} cannot be compared:\n  {shown}{more}\n"
            "a difference between them would not be the drafter's alone; --force compares the shared prompts anyway "
            "and says so",
            ErrorCode.TARGET_MISMATCH,
            details={"reasons": reasons},
        )
    try:
        found = compare(
            by_conversation(before.run.measured(before.drafter)),
            by_conversation(after.run.measured(after.drafter)),
            statistics=compared(is_greedy=not is_sampled(before.run.results)),
            is_forced=bool(reasons),
        )
    except ValueError as error:
        raise MismatchError(f"{before.label} and {after.label}: {error}", ErrorCode.TARGET_MISMATCH) from error
    return SideBySide(before, after, found, tuple(reasons))


def reasons_against(before: Side, after: Side) -> list[str]:
    """Everything besides the drafter that differs between the two; nothing when they are of one run."""
    one, other = before.run, after.run
    if one.path.resolve() == other.path.resolve():
        return []
    reasons = [f"{name}: {a!r} and {b!r}" for name, a, b in _different_settings(one, other)]
    alone = sorted(set(one.turn_ids) ^ set(other.turn_ids))
    if alone:
        reasons.append(f"{len(alone)} prompts are in one run only, first {alone[0]!r}")
    shared = [turn_id for turn_id in one.turn_ids if turn_id in set(other.turn_ids)]
    for what, field in (("prompt ids", "prompt_ids"), ("references", "response_ids")):
        differing = [i for i in shared if getattr(one.references[i], field) != getattr(other.references[i], field)]
        if differing:
            reasons.append(f"{what} differ for {len(differing)} of {len(shared)} prompts, first {differing[0]!r}")
    return reasons


def _different_settings(one: Run, other: Run) -> list[tuple[str, Any, Any]]:
    """Settings, target and numerics that differ. Where references came from does not count: their ids are compared."""
    parts = []
    for run in (one, other):
        identity = run.manifest.identity()
        identity["settings"] = {key: value for key, value in identity["settings"].items() if key not in _HARMLESS}
        parts.append({key: identity[key] for key in ("settings", "target", "drafter_service")})
    return differences(parts[0], parts[1])


# Settings that change what is asked for but not the walk: ids are compared themselves.
_HARMLESS = frozenset({"reference_concurrency", "tail_tokens", "max_turns"})
