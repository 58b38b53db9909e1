"""The decision: which condition beats the declared one, and what that says in plain words.

Rule. A suspect is *found* when its joint p-value is at most ALPHA and its gain at least the floor. All suspects are
judged together (`sign_flips`), so a healthy drafter is accused of anything at all at most once in twenty probes,
however many conditions are tried; the floor keeps differences too small to matter from being called faults. A suspect
is *ruled out* when the 95 % interval of its gain lies below the floor, or when it changed nothing at any anchor.
Anything else is *open*: the texts cannot tell. It takes six conversations to rule anything out, and some more to find
something.

Only the best condition of a group (all thetas, both tap shifts, ..) is a finding; the finding with the largest gain
comes first, the others may have the same cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tauscope_client.metrics.intervals import FEW_PROMPTS
from tauscope_client.probe.effects import Effect

__all__ = ["ALPHA", "MIN_GAIN", "MIN_GAIN_RATIO", "Verdict", "floor_of", "judge"]

ALPHA = 0.05
"""Chance that a healthy drafter is accused of anything, over all suspects together."""

MIN_GAIN_RATIO = 0.02
"""Of the emitted tokens per anchor as declared: layer ids off by one cost 3 to 5 % on large drafters."""

MIN_GAIN = 0.05
"""Accepted tokens per anchor; keeps a drafter that accepts almost nothing from being judged by hundredths."""

_NEXT_TO_NOTHING = 0.2
"""Accepted tokens per anchor under the best condition, below which no condition explains anything."""

Kind = Literal["found", "nothing", "open"]


@dataclass(frozen=True)
class Verdict:
    """What a probe came to.

    Attributes:
        kind: `found`, `nothing` (every suspect ruled out), or `open` (cannot tell).
        headline: one sentence.
        findings: best condition of each group that wins, largest gain first.
        undecided: suspects that the texts can neither convict nor rule out.
        floor: gain below which a difference does not matter.
        notes: what a reader must know besides.
    """

    kind: Kind
    headline: str
    findings: tuple[Effect, ...]
    undecided: tuple[Effect, ...]
    floor: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "kind": self.kind,
            "headline": self.headline,
            "findings": [
                one.to_dict() | {"meaning": one.condition.meaning, "advice": one.condition.advice}
                for one in self.findings
            ],
            "undecided": [one.condition.name for one in self.undecided],
            "floor": self.floor,
            "alpha": ALPHA,
            "notes": list(self.notes),
        }


def floor_of(declared: float) -> float:
    """The smallest gain that matters, in accepted tokens per anchor, for a drafter that accepts `declared`."""
    return max(MIN_GAIN, MIN_GAIN_RATIO * (1 + declared))


def judge(effects: Sequence[Effect], *, num_conversations: int) -> Verdict:
    """Decide by the rule above.

    Args:
        effects: of all conditions; ablations are ignored.
        num_conversations: that they rest on.
    """
    suspects = [effect for effect in effects if effect.condition.is_suspect]
    declared = max((effect.declared for effect in suspects), default=0.0)  # the one with the most drafts counted
    floor = floor_of(declared)
    found = [effect for effect in suspects if _is_found(effect, floor)]
    undecided = tuple(effect for effect in suspects if effect not in found and not _is_ruled_out(effect, floor))
    findings = _best_of_groups(found)
    notes = _notes(suspects, findings, declared, num_conversations)
    if findings:
        return Verdict("found", _found_text(findings[0]), findings, undecided, floor, notes)
    if undecided:
        return Verdict("open", _open_text(undecided, floor), (), undecided, floor, notes)
    text = (
        f"nothing found: none of {len(suspects)} changed conditions beats the declared one by {floor:.2f} accepted "
        "tokens per anchor or more"
    )
    return Verdict("nothing", text, (), (), floor, notes)


def _is_found(effect: Effect, floor: float) -> bool:
    return effect.joint_p is not None and effect.joint_p <= ALPHA and effect.gain >= floor


def _is_ruled_out(effect: Effect, floor: float) -> bool:
    return effect.is_idle or (effect.high is not None and effect.high < floor)


def _best_of_groups(found: Sequence[Effect]) -> tuple[Effect, ...]:
    best: dict[str, Effect] = {}
    for effect in sorted(found, key=lambda one: one.gain, reverse=True):
        best.setdefault(effect.condition.group, effect)
    return tuple(best.values())


def _found_text(effect: Effect) -> str:
    how_sure = f"95 % interval {_ends(effect)}, joint p {effect.joint_p:.2g}"
    return (
        f"{effect.condition.meaning}: {effect.gain:+.2f} accepted tokens per anchor at `{effect.condition.name}` "
        f"({effect.declared:.2f} as declared, {effect.accepted:.2f} so; {how_sure})"
    )


def _open_text(undecided: Sequence[Effect], floor: float) -> str:
    named = ", ".join(f"`{one.condition.name}` ({_ends(one)})" for one in sorted(undecided, key=lambda one: -one.gain))
    return f"cannot tell: nothing is found, but a gain of {floor:.2f} or more is not ruled out for {named}"


def _ends(effect: Effect) -> str:
    known = effect.low is not None and effect.high is not None
    return f"{effect.low:+.2f} to {effect.high:+.2f}" if known else "no interval"


def _notes(
    suspects: Sequence[Effect], findings: Sequence[Effect], declared: float, num_conversations: int
) -> tuple[str, ...]:
    notes = []
    if len(findings) > 1:
        others = ", ".join(f"`{one.condition.name}` ({one.gain:+.2f})" for one in findings[1:])
        notes.append(f"also better than declared: {others}; perhaps by the same cause: repair the first, probe again")
    best = max((effect.accepted for effect in suspects), default=declared)
    if not findings and max(best, declared) < _NEXT_TO_NOTHING:
        notes.append(
            f"the drafter accepts next to nothing under every condition (at most {max(best, declared):.2f} tokens per "
            "anchor): whatever is wrong with it is none of what was tried, or it is not trained yet"
        )
    if num_conversations < FEW_PROMPTS:
        notes.append(f"only {num_conversations} conversations: intervals are wide; use {FEW_PROMPTS} or more")
    return tuple(notes)
