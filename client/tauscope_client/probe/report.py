"""What a probe writes: `probe.json` for programs, `probe.md` for people."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tauscope_client.probe.condition import Counts
from tauscope_client.probe.effects import Effect
from tauscope_client.probe.verdict import FIRST_FLOOR
from tauscope_client.runs.files import write_json, write_text

__all__ = ["PROBE_SCHEMA", "probe_markdown", "write_report"]

PROBE_SCHEMA = "tauscope.probe/1"

_RULE = (
    "Rule: a condition is found when its joint p is at most {alpha:g} and its gain at least {floor:.2f} ({first:.2f} "
    "of first drafts; a larger block must also draft as good first tokens, up to {first:.2f}). The joint p "
    "takes all {count} suspects together (sign flips over conversations, minP), so at most one healthy drafter in "
    "twenty is accused of anything. A condition is ruled out when the 95 % interval of its gain lies below that (a "
    "larger block also when its first drafts are certainly worse); otherwise the texts cannot tell."
)
_STATISTIC = (
    "Gain: accepted draft tokens per anchor (no bonus), mean over all response anchors, minus the same as declared, on "
    "the same anchors; conditions that draft fewer tokens are compared over as many. Of a smaller block (first "
    "drafts): the share of anchors whose first draft is right. Of a larger one (all drafts): nothing is cut."
)


def write_report(folder: Path, probe: Mapping[str, Any], effects: Sequence[Effect]) -> None:
    """Write both files into the folder, each at once."""
    write_json(folder / "probe.json", dict(probe))
    write_text(folder / "probe.md", probe_markdown(probe, effects))


def probe_markdown(probe: Mapping[str, Any], effects: Sequence[Effect]) -> str:
    """The report for people.

    Args:
        probe: the content of `probe.json`.
        effects: of all conditions.
    """
    verdict, drafter = probe["verdict"], probe["drafter"]
    suspects = ranked(effects, is_suspect=True)
    lines = [
        f"# Probe of drafter {drafter['name']}",
        "",
        f"**{_sentence(verdict['headline'])}**",
        "",
        *[f"- What to do: {finding['advice']}." for finding in verdict["findings"][:1]],
        *[f"- {_sentence(note)}" for note in verdict["notes"]],
        "",
        f"{probe['num_texts']} texts of {probe['num_conversations']} conversations, {probe['num_anchors']} anchors; "
        f"{probe['accepted_as_declared']:.2f} drafts accepted per anchor as declared (taps {drafter['taps']}, "
        f"{drafter['layout']}, block {drafter['block_size']}, theta {drafter['rope'].get('theta', 'none')}).",
        "",
        "## Suspects",
        "",
        *_table(suspects),
        "",
        _STATISTIC,
        "",
        _RULE.format(
            alpha=verdict["alpha"],
            floor=verdict["floor"],
            first=FIRST_FLOOR,
            count=sum(not one.is_idle for one in suspects),
        ),
        "",
        *(["Not tried:", "", *[f"- {text}" for text in probe["left_out"]], ""] if probe["left_out"] else []),
        "## How it uses the states",
        "",
        *[f"- {sentence}" for sentence in probe["dependence"]["sentences"]],
        "",
        *_table(ranked(effects, is_suspect=False)),
        "",
        "Information, not a verdict.",
        "",
        *(["## Careful", "", *[f"- {text}" for text in probe["warnings"]], ""] if probe["warnings"] else []),
    ]
    return "\n".join(lines)


def ranked(effects: Sequence[Effect], *, is_suspect: bool) -> list[Effect]:
    """The suspects, or the ablations, largest gain first."""
    chosen = [effect for effect in effects if effect.condition.is_suspect == is_suspect]
    return sorted(chosen, key=lambda effect: -effect.gain)


def cells(effect: Effect) -> tuple[str, ...]:
    """Condition, accepted, gain, interval, won and lost conversations, joint p; as tables show them."""
    ends = "–" if effect.low is None or effect.high is None else f"{effect.low:+.2f} to {effect.high:+.2f}"
    return (
        effect.condition.name + _COUNTS[effect.condition.counts],
        f"{effect.accepted:.2f}",
        f"{effect.gain:+.2f}",
        "changes nothing" if effect.is_idle else ends,
        f"{effect.wins} : {effect.losses}",
        "" if effect.joint_p is None else f"{effect.joint_p:.2g}",
    )


_COUNTS: Mapping[Counts, str] = {"accepted": "", "first": " (first drafts)", "uncut": " (all drafts)"}

HEADS = ("condition", "accepted", "gain", "95 % interval", "won : lost", "joint p")
"""Over the columns of `cells`."""


def _table(effects: Sequence[Effect]) -> list[str]:
    rows = [f"| {' | '.join(cells(effect))} |" for effect in effects]
    return [f"| {' | '.join(HEADS)} |", "| --- | ---: | ---: | ---: | ---: | ---: |", *rows]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
