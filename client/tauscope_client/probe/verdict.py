"""The decision: which condition beats the declared one, and what that says in plain words.

Rule. A suspect is *found* when its joint p-value is at most ALPHA and its gain at least the floor. All suspects are
judged together (`sign_flips`), so a healthy drafter is accused of anything at all at most once in twenty probes,
however many conditions are tried; the floor keeps differences too small to matter from being called faults. A suspect
is *ruled out* when the 95 % interval of its gain lies below the floor, or when it changed nothing at any anchor.
Anything else is *open*: the texts cannot tell. It takes six conversations to rule anything out, and some more to find
something.

A block of another size is judged otherwise, because slots may be added or taken away with little harm. Half the block:
by the first draft alone, which more slots than in training disturb; its floor is FIRST_FLOOR. Twice the block: by all
drafts that it accepts, and only if its first drafts are as good as declared up to that floor: a drafter that accepts
more drafts beyond its block, yet worse ones in it, was not trained with the larger one.

Only the best condition of a group (all thetas, both tap shifts, ..) is a finding; the finding with the largest gain
(in floors) comes first, the others may have the same cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from tauscope_client.metrics.intervals import FEW_PROMPTS
from tauscope_client.probe.condition import Counts
from tauscope_client.probe.effects import Effect

__all__ = ["ALPHA", "FIRST_FLOOR", "MIN_GAIN", "MIN_GAIN_RATIO", "Verdict", "floor_of", "judge"]

ALPHA = 0.05
"""Chance that a healthy drafter is accused of anything, over all suspects together."""

MIN_GAIN_RATIO = 0.02
"""Of the emitted tokens per anchor as declared: layer ids off by one cost 3 to 5 % on large drafters."""

MIN_GAIN = 0.05
"""Accepted tokens per anchor; keeps a drafter that accepts almost nothing from being judged by hundredths."""

FIRST_FLOOR = 0.01
"""Share of first drafts: twice the slots of training cost the bundled drafters two to four in a hundred."""

_NEXT_TO_NOTHING = 0.2
"""Accepted tokens per anchor under the best condition, below which no condition explains anything."""

_UNITS: Mapping[Counts, str] = MappingProxyType(
    {
        "accepted": "accepted tokens per anchor",
        "first": "right first drafts per anchor",
        "uncut": "accepted tokens per anchor",
    }
)

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
    declared = max((one.declared for one in suspects if one.condition.counts != "first"), default=0.0)
    floor = floor_of(declared)
    found = [effect for effect in suspects if _is_found(effect, floor)]
    undecided = tuple(effect for effect in suspects if effect not in found and not _is_ruled_out(effect, floor))
    findings = _best_of_groups(found, floor)
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


def _floor(effect: Effect, floor: float) -> float:
    """The floor of what the condition counts."""
    return FIRST_FLOOR if effect.condition.counts == "first" else floor


def _is_found(effect: Effect, floor: float) -> bool:
    if effect.joint_p is None or effect.joint_p > ALPHA or effect.gain < _floor(effect, floor):
        return False
    return effect.condition.counts != "uncut" or (effect.first_low is not None and effect.first_low > -FIRST_FLOOR)


def _is_ruled_out(effect: Effect, floor: float) -> bool:
    if effect.is_idle or (effect.high is not None and effect.high < _floor(effect, floor)):
        return True
    return effect.condition.counts == "uncut" and effect.first_high is not None and effect.first_high < 0


def _best_of_groups(found: Sequence[Effect], floor: float) -> tuple[Effect, ...]:
    best: dict[str, Effect] = {}
    for effect in sorted(found, key=lambda one: one.gain / _floor(one, floor), reverse=True):
        best.setdefault(effect.condition.group, effect)
    return tuple(best.values())


def _found_text(effect: Effect) -> str:
    condition = effect.condition
    return (
        f"{condition.meaning}: {effect.gain:+.2f} {_UNITS[condition.counts]} at `{condition.name}` "
        f"({effect.declared:.2f} as declared, {effect.accepted:.2f} so; 95 % interval {_ends(effect)}, joint p "
        f"{effect.joint_p:.2g})"
    )


def _open_text(undecided: Sequence[Effect], floor: float) -> str:
    named = ", ".join(f"`{one.condition.name}` ({_ends(one)})" for one in sorted(undecided, key=lambda one: -one.gain))
    floors = sorted({f"{_floor(one, floor):.2f} {_UNITS[one.condition.counts]}" for one in undecided}, reverse=True)
    return f"cannot tell: nothing is found, but a gain of {' or '.join(floors)} is not ruled out for {named}"


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
    best = max((effect.accepted for effect in suspects if effect.condition.counts != "first"), default=declared)
    beyond = [one for one in suspects if one.condition.counts == "uncut" and one not in findings]
    notes += [
        f"at `{one.condition.name}` it accepts {one.gain:+.2f} tokens per anchor ({_ends(one)}), but that is no sign "
        "of a block declared too small: its first drafts are not as good there; a server may use the longer block"
        for one in beyond
        if one.low is not None and one.low > 0
    ]
    if not findings and max(best, declared) < _NEXT_TO_NOTHING:
        notes.append(
            f"the drafter accepts next to nothing under every condition (at most {max(best, declared):.2f} tokens per "
            "anchor): whatever is wrong with it is none of what was tried, or it is not trained yet"
        )
    if num_conversations < FEW_PROMPTS:
        notes.append(f"only {num_conversations} conversations: intervals are wide; use {FEW_PROMPTS} or more")
    return tuple(notes)
