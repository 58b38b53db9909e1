"""1+N or anchor-first: what the files say. Where they do not, `layout_probe` measures."""

from typing import Literal, NamedTuple

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_wire.errors import CheckpointError, ErrorCode

BlockLayout = Literal["fill-in", "anchor-first"]

# Three names of one flag: true means that row 0 predicts the token after the anchor.
_FLAGS = ("sample_from_anchor", "query_zero_predicts_next", "shift_label")
_DEEPSPEC_ARCHITECTURE = "DSparkModel"


class LayoutVerdict(NamedTuple):
    """The layout, None when it has to be measured, and why."""

    layout: BlockLayout | None
    evidence: str


def resolve_layout(facts: Facts, family: str) -> LayoutVerdict:
    """Override, then flags, then architecture and format.

    Raises:
        CheckpointError: two flags contradict each other.
    """
    if facts.options.layout is not None:
        return LayoutVerdict(facts.options.layout, "given as an option")
    flags = {name: value for name in _FLAGS if (value := facts.own.flag(name)) is not None}
    if len(set(flags.values())) > 1:
        said = ", ".join(f"{name}={value}" for name, value in flags.items())
        raise CheckpointError(
            f"{facts.origin}: {said} contradict each other; give layout=fill-in or layout=anchor-first",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    if flags:
        name, value = next(iter(flags.items()))
        return LayoutVerdict("anchor-first" if value else "fill-in", f"{name}={str(value).lower()}")
    if any(a.endswith(_DEEPSPEC_ARCHITECTURE) for a in facts.architectures):
        return LayoutVerdict("anchor-first", f"architecture {facts.architectures[0]}")
    if facts.format == "deepspec":
        return LayoutVerdict("anchor-first", "DeepSpec trains its block drafters anchor-first")
    if family == "dspark":
        if facts.format == "specforge":
            return LayoutVerdict("anchor-first", "SpecForge's DSpark labels are anchor-first")
        return LayoutVerdict(None, f"{facts.format} DSpark without sample_from_anchor: written with both layouts")
    return LayoutVerdict("fill-in", f"family {family} without a layout flag")
