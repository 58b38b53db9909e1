"""Which conditions a drafter is tried under, and what it means when one of them wins.

Suspects are faults that a drafter or its configuration can have; only they can lead to a verdict. Ablations damage the
states on purpose and say how the drafter uses them; they are never findings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, NamedTuple

from tauscope_client.probe.condition import DECLARED, Condition, Counts, Group
from tauscope_wire.layers import EMBEDDING
from tauscope_wire.messages import DraftConditions, DrafterCard, TargetInfo

__all__ = ["NOISE_LEVELS", "Plan", "plan_conditions"]

NOISE_LEVELS = (0.013, 0.03, 0.085, 0.2, 0.5)
"""Relative noise on the states; the first and the third bracket what another kernel does to them (`dependence`)."""

_THETAS = (1e4, 1e5, 5e5, 1e6, 1e7)
"""Bases in use: the default of many libraries, and those of the Llama and Qwen families."""

_WINDOWS = (128, 512, 2048, 4096)
"""Windows tried on a drafter that declares none, where texts are longer."""


class Plan(NamedTuple):
    """The conditions, declared first, and what was left out, one sentence each."""

    conditions: list[Condition]
    left_out: list[str]


@dataclass
class _Planner:
    card: DrafterCard
    target: TargetInfo
    longest: int
    left_out: list[str] = field(default_factory=list)

    def suspects(self) -> Iterator[Condition]:
        yield from self._shifted_taps()
        if self.card.layout != "sequential":
            yield from self._context()
            yield from self._blocks()
            yield from self._windows()
        else:
            self.left_out.append(
                f"context, layout, block and window: family {self.card.family} drafts token after token, not in blocks"
            )
        yield from self._rope()
        yield from self._norms()
        yield from self._orders()

    def ablations(self) -> Iterator[Condition]:
        places = range(len(self.card.taps))
        deepest = self.deepest
        for place in places:
            yield _ablation(f"tap {self.card.taps[place]} zero", DraftConditions(zero_taps=[place]))
        for place in places:
            yield _ablation(f"tap {self.card.taps[place]} mean", DraftConditions(mean_taps=[place]))
        if len(places) > 1:
            others = [place for place in places if place != deepest]
            yield _ablation(f"only tap {self.card.taps[deepest]}", DraftConditions(mean_taps=others))
        yield _ablation("no states", DraftConditions(mean_taps=list(places)))
        for level in NOISE_LEVELS:
            yield Condition(f"noise {level:g}", "noise", DraftConditions(noise=level))

    @property
    def deepest(self) -> int:
        return self.card.taps.index(max(self.card.taps))

    def _shifted_taps(self) -> Iterator[Condition]:
        highest = min(self.target.model.num_layers - 1, self.target.deepest_layer)
        for shift in (-1, 1):
            taps = [tap + shift for tap in self.card.taps]
            if min(taps) < EMBEDDING or max(taps) > highest:
                outside = min(taps) if shift < 0 else max(taps)
                self.left_out.append(
                    f"taps {shift:+d}: layer {outside} is outside of what the target service holds ({EMBEDDING}.."
                    f"{highest})"
                )
                continue
            yield _suspect(
                f"taps {shift:+d}",
                "taps",
                DraftConditions(taps=taps),
                meaning=f"taps look shifted by one: they should be {taps}, not {self.card.taps}",
                advice="ids of the `tuple` convention (Hugging Face, vLLM, speculators) are one higher than those of "
                "the `output` convention (z-lab, SGLang): check which one training used",
            )

    def _context(self) -> Iterator[Condition]:
        yield _suspect(
            "context +1",
            "context",
            DraftConditions(context_shift=1),
            meaning="the drafter was trained with a leak: its context included the anchor's own state, which does not "
            "exist yet when a server drafts",
            advice="mask context keys at positions >= the anchor in training, and train again: no setting can repair "
            "this",
        )
        yield _suspect(
            "context -1",
            "context",
            DraftConditions(context_shift=-1),
            meaning="the drafter was trained with a context that ends one position early",
            advice="let training show all positions before the anchor",
        )

    def _blocks(self) -> Iterator[Condition]:
        other: Literal["fill-in", "anchor-first"] = "fill-in" if self.card.layout == "anchor-first" else "anchor-first"
        yield _suspect(
            f"layout {other}",
            "layout",
            DraftConditions(layout=other),
            meaning=f"the block layout is {other}, not {self.card.layout}",
            advice=f"declare it: load the drafter with layout={other}",
        )
        if self.card.windows and all(window["causal"] for window in self.card.windows):
            self.left_out.append(
                "block sizes: rows of this drafter see only earlier rows, so another size changes no draft, only how "
                "many there are"
            )
            return
        # Rows that see each other are disturbed by more slots than in training, and the first row is where that shows
        # best: it is right or wrong, and its share varies little from text to text. Fewer slots than in training hardly
        # disturb it, but later drafts are missing then.
        sizes: tuple[tuple[int, Counts], ...] = (
            (self.card.block_size // 2, "first"),
            (self.card.block_size * 2, "uncut"),
        )
        for size, counts in sizes:
            if 2 <= size <= 256:
                yield _suspect(
                    f"block {size}",
                    "block",
                    DraftConditions(block_size=size),
                    meaning=f"the block looks like {size} slots rather than {self.card.block_size}",
                    advice="declare the block size of training",
                    counts=counts,
                )

    def _windows(self) -> Iterator[Condition]:
        sizes = {window["size"] for window in self.card.windows}
        declared = next((size for size in sizes if size is not None), None)
        if declared is None:
            wanted = [size for size in _WINDOWS if size < self.longest] if self.card.windows else []
            if self.card.windows and not wanted:
                self.left_out.append(f"windows: the longest text has {self.longest} tokens, too short to show one")
        else:
            wanted = [0, declared // 2, declared * 2]
        for size in wanted:
            text = "full attention" if size == 0 else f"a window of {size}"
            said = "none" if declared is None else f"{declared}"
            yield _suspect(
                f"window {size or 'full'}",
                "window",
                DraftConditions(sliding_window=size),
                meaning=f"the drafter looks trained with {text} (declared window: {said})",
                advice="check sliding_window and layer_types",
            )
        for causal in sorted({not window["causal"] for window in self.card.windows}):
            text = "sees only earlier rows" if causal else "sees the whole block"
            yield _suspect(
                "block causal" if causal else "block bidirectional",
                "causal",
                DraftConditions(causal=causal),
                meaning=f"a row of the block {text} in training, unlike what is declared",
                advice="check is_causal and layer_types",
            )

    def _rope(self) -> Iterator[Condition]:
        declared = self.card.rope.get("theta")
        if declared is None:
            return
        for theta in _THETAS:
            if theta != declared:
                yield _suspect(
                    f"theta {theta:g}",
                    "rope",
                    DraftConditions(rope_theta=theta),
                    meaning=f"rope theta looks like {theta:g} rather than {declared:g} (or nearer to it)",
                    advice="find the theta of training and declare it (rope_theta)",
                )
        kind = self.card.rope.get("kind", "default")
        if kind != "default":
            yield _suspect(
                "rope unscaled",
                "rope",
                DraftConditions(plain_rope=True),
                meaning=f"the drafter looks trained without the declared rope scaling ({kind})",
                advice="remove rope_scaling, or take the configuration of this revision",
            )

    def _norms(self) -> Iterator[Condition]:
        yield _suspect(
            "states normed",
            "norm",
            DraftConditions(state_norm="rms"),
            meaning="the drafter looks trained on normalised states, not on the residual stream itself",
            advice="capture the states before any norm, in training as in serving",
        )
        if self.card.taps[self.deepest] == self.target.model.num_layers - 1:
            yield _suspect(
                "final norm",
                "norm",
                DraftConditions(state_norm="final_norm"),
                meaning="the deepest tap looks like the state after the target's final norm",
                advice="Hugging Face `hidden_states[-1]` is after the final norm, engines tap before it: capture by a "
                "hook on the last layer",
            )

    def _orders(self) -> Iterator[Condition]:
        count = len(self.card.taps)
        # neighbours and the two ends: a wrong order shows in one of them, and every further pair costs certainty
        pairs = [(i, j) for i, j in combinations(range(count), 2) if j == i + 1 or (i, j) == (0, count - 1)]
        for i, j in pairs:
            taps = list(self.card.taps)
            taps[i], taps[j] = taps[j], taps[i]
            yield _suspect(
                f"swap {self.card.taps[i]},{self.card.taps[j]}",
                "order",
                DraftConditions(swap_taps=[(i, j)]),
                meaning=f"the taps are in another order than declared: {taps} fits better than {self.card.taps}",
                advice="list the taps in the order in which training concatenated them",
            )


def plan_conditions(card: DrafterCard, target: TargetInfo, *, longest_text: int) -> Plan:
    """All conditions for one drafter.

    Args:
        card: the drafter; it reads states (`taps` is not empty).
        target: what the target service holds.
        longest_text: tokens of the longest text, prompt included: windows as long as it make no difference.
    """
    planner = _Planner(card, target, longest_text)
    conditions = [DECLARED, *planner.suspects(), *planner.ablations()]
    return Plan(conditions, planner.left_out)


def _suspect(
    name: str, group: Group, conditions: DraftConditions, *, meaning: str, advice: str, counts: Counts = "accepted"
) -> Condition:
    return Condition(name, group, conditions, is_suspect=True, meaning=meaning, advice=advice, counts=counts)


def _ablation(name: str, conditions: DraftConditions) -> Condition:
    return Condition(name, "tap", conditions)
