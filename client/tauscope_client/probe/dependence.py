"""How the drafter uses the states: which taps it lives on, whether the deepest is a shortcut, how brittle it is.

Information, not a verdict. What the states are worth is the difference between drafting as declared and drafting with
every tap replaced by its mean over positions, which keeps the scale and takes the information away; shares below are of
that difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tauscope_client.probe.conditions import NOISE_LEVELS
from tauscope_client.probe.effects import Effect

__all__ = ["KERNEL_NOISE", "Dependence", "dependence_of"]

KERNEL_NOISE = (0.013, 0.085)
"""Relative difference of the states between fla kernels and the torch fallback of gated delta layers, at the first and
the last tap (Qwen3.6-27B, BF16, 512 tokens, measured on an H200 in November 2026). It is one pattern for one text, and
grows with depth; Gaussian noise of its size is a comparison, not a simulation."""

SHORTCUT_KEPT = 0.8
"""Share that the deepest tap must keep alone to be called a shortcut .."""

SHORTCUT_LOST = 0.5
""".. and that must be lost without it."""

BRITTLE_RATIO = 0.1
"""Loss at the larger kernel noise, of the accepted tokens as declared, from which on a drafter is called brittle."""

_MINOR_RATIO = 0.05
"""A tap whose loss is a smaller share than this hardly matters."""


@dataclass(frozen=True)
class Dependence:
    """Findings about the states.

    Attributes:
        worth: accepted tokens per anchor that the states bring.
        lost_without: canonical tap -> share lost when it is replaced by its mean.
        lost_at_zero: canonical tap -> share lost when it is zero.
        kept_by_deepest: share that the deepest tap keeps when all others are replaced by their means; None for one tap.
        lost_at_noise: relative noise -> accepted tokens lost per anchor.
        sentences: the same in words.
    """

    worth: float
    lost_without: Mapping[int, float]
    lost_at_zero: Mapping[int, float]
    kept_by_deepest: float | None
    lost_at_noise: Mapping[float, float]
    sentences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "worth": self.worth,
            "lost_without": {str(tap): share for tap, share in self.lost_without.items()},
            "lost_at_zero": {str(tap): share for tap, share in self.lost_at_zero.items()},
            "kept_by_deepest": self.kept_by_deepest,
            "lost_at_noise": {str(level): loss for level, loss in self.lost_at_noise.items()},
            "kernel_noise": list(KERNEL_NOISE),
            "sentences": list(self.sentences),
        }


def dependence_of(effects: Sequence[Effect], taps: Sequence[int], *, floor: float) -> Dependence:
    """Read the ablations.

    Args:
        effects: of all ablations of `conditions.plan_conditions`; others are ignored.
        taps: canonical ids, as declared.
        floor: loss of accepted tokens per anchor below which nothing can be said.
    """
    by_name = {effect.condition.name: effect for effect in effects}
    none = by_name["no states"]
    declared, worth = none.declared, -none.gain
    lost_at_noise = {level: -by_name[f"noise {level:g}"].gain for level in NOISE_LEVELS}
    if worth < floor:
        text = (
            f"The states make no difference that matters: {declared:.2f} accepted tokens per anchor as declared, "
            f"{none.accepted:.2f} with every tap replaced by its mean. The drafter does not use them."
        )
        return Dependence(worth, {}, {}, None, lost_at_noise, (text,))
    without = {tap: -by_name[f"tap {tap} mean"].gain / worth for tap in taps}
    at_zero = {tap: -by_name[f"tap {tap} zero"].gain / worth for tap in taps}
    deepest = max(taps)
    alone = by_name.get(f"only tap {deepest}")
    kept = None if alone is None else 1 + alone.gain / worth
    sentences = [
        f"The states bring {worth:.2f} of {declared:.2f} accepted tokens per anchor ({none.accepted:.2f} are left with "
        "every tap replaced by its mean).",
        _taps_sentence(without),
    ]
    if kept is not None:
        sentences.append(_shortcut_sentence(deepest, kept, without[deepest]))
    sentences += _noise_sentences(lost_at_noise, by_name, declared, worth)
    return Dependence(worth, without, at_zero, kept, lost_at_noise, tuple(sentences))


def _taps_sentence(without: Mapping[int, float]) -> str:
    ordered = sorted(without, key=lambda tap: -without[tap])
    major = [tap for tap in ordered if without[tap] >= _MINOR_RATIO]
    minor = sorted(set(ordered) - set(major))
    text = "No single tap is missed much: each can be replaced by its mean"
    if major:
        text = "It lives on " + ", ".join(f"layer {tap} ({without[tap]:.0%} is lost without it)" for tap in major)
    if major and minor:
        text += f"; it hardly misses {_layers(minor)}"
    return text + "."


def _layers(taps: Sequence[int]) -> str:
    return f"layer{'s' if len(taps) > 1 else ''} {', '.join(map(str, taps))}"


def _shortcut_sentence(deepest: int, kept: float, lost: float) -> str:
    both = f"alone it keeps {kept:.0%}, without it {lost:.0%} is lost"
    if kept >= SHORTCUT_KEPT and lost >= SHORTCUT_LOST:
        return f"It leans on the deepest tap, layer {deepest}, as a shortcut: {both}."
    if kept >= SHORTCUT_KEPT:
        return f"The deepest tap, layer {deepest}, would do alone, yet it is not needed: {both}."
    return f"The deepest tap, layer {deepest}, is no shortcut: {both}."


def _noise_sentences(
    lost: Mapping[float, float], by_name: Mapping[str, Effect], declared: float, worth: float
) -> list[str]:
    small, large = KERNEL_NOISE
    is_brittle = lost[large] >= BRITTLE_RATIO * declared and by_name[f"noise {large:g}"].excludes_zero
    costs = " to ".join(f"{max(0.0, lost[level]):.2f}" for level in KERNEL_NOISE)
    sentences = [
        f"Noise of the size of the difference between fla kernels and their fallback ({small:.1%} to {large:.1%} of a "
        f"row) costs {costs} accepted tokens per anchor: the drafter is {'brittle' if is_brittle else 'not brittle'} "
        "at that size."
    ]
    half = next((level for level in sorted(lost) if lost[level] >= worth / 2), None)
    if half is None:
        sentences.append(f"Even at {max(lost):.0%} noise it keeps more than half of what the states bring.")
    else:
        sentences.append(f"At {half:.1%} noise it has lost half of what the states bring, or more.")
    return sentences
