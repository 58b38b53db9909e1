"""The rows that people look at first, chosen from `results.json`; for the terminal and the Markdown page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tauscope_client.metrics import TOP_KS
from tauscope_client.runs.headline import headline_name, is_sampled, tau_label

__all__ = [
    "ENGINES",
    "HEADLINES",
    "ONE_SAMPLE",
    "Row",
    "comparison_lines",
    "engine_rows",
    "headline_rows",
    "number",
    "position_rows",
    "split_rows",
    "strata_rows",
    "tree_definition",
    "used_definitions",
    "with_interval",
]


@dataclass(frozen=True)
class Row:
    """One line of a comparison: a label and one cell a drafter."""

    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Headline:
    """A scalar that is shown: its name in `results.json`, its label, and how it is written."""

    name: str
    label: str
    is_share: bool = False


HEADLINES = (
    Headline("tau", "tau"),
    Headline("tau_prompt_mean", "mean of per-prompt means"),
    Headline("tau_unclipped", "tau, unclipped"),
    Headline("accept_rate", "accepted / drafted", is_share=True),
    *(Headline(f"topk_walk_tau_{k}", f"top-{k} walk tau") for k in TOP_KS if k > 1),  # k = 1 is tau
    *(Headline(f"topk_streak_{k}", f"top-{k} streak") for k in TOP_KS),
    Headline("agreement", "agreement", is_share=True),
)

EXPECTED_HEADLINES = (
    Headline("expected_tau_sampled", "expected tau, sampled drafts"),
    Headline("expected_tau_greedy", "expected tau, greedy drafts"),
    Headline("expected_acceptance_sampled", "expected acceptance, sampled drafts", is_share=True),
    Headline("expected_acceptance_greedy", "expected acceptance, greedy drafts", is_share=True),
)
"""What leads a run over sampled references; tau then is a match with one sample and says so."""

TREE = "ddtree_tau_"
"""How the names of tree budgets begin."""

ONE_SAMPLE = "matches with this one sample"

_CURVES = (
    ("prefix_rate_walk", "prefix"),
    ("conditional_rate_walk", "conditional"),
    ("teacher_forced_accuracy_all", "teacher-forced, all anchors"),
    ("tau_by_width", "tau, so many verified"),
)


def number(value: float | None, *, is_share: bool = False) -> str:
    """A number as tables show it; a dash where the data cannot determine it."""
    if value is None:
        return "–"
    return f"{value:.1%}" if is_share else f"{value:.3f}"


def with_interval(part: Mapping[str, Any], name: str, *, is_share: bool = False) -> str:
    """A value with its interval, `5.078 (4.1 to 6.2)`; without one where there is none."""
    text = number(part["values"].get(name), is_share=is_share)
    interval = part.get("intervals", {}).get(name)
    if interval is None or interval["low"] is None or interval["high"] is None:
        return text
    ends = (f"{interval[end]:.0%}" if is_share else f"{interval[end]:.2f}" for end in ("low", "high"))
    return f"{text} ({' to '.join(ends)})"


def headline_rows(drafters: Mapping[str, Any]) -> list[Row]:
    """Headline numbers over all prompts, each with its interval."""
    overall = [drafter["overall"] for drafter in drafters.values()]
    trees = [name for name in (overall[0]["values"] if overall else ()) if name.startswith(TREE)]
    is_expected = any(EXPECTED_HEADLINES[0].name in part["values"] for part in overall)
    plain = [*HEADLINES, *(Headline(name, f"DDTree tau, {name.removeprefix(TREE)} nodes") for name in trees)]
    if is_expected:
        plain = [
            replace(line, label=f"{line.label} ({ONE_SAMPLE})") if line.name in ("tau", *trees) else line
            for line in plain
        ]
    lines = [*(EXPECTED_HEADLINES if is_expected else ()), *plain]
    rows = [
        Row(line.label, tuple(with_interval(part, line.name, is_share=line.is_share) for part in overall))
        for line in lines
    ]
    rows.append(Row("rounds", tuple(str(part["counts"]["num_rounds"]) for part in overall)))
    return rows


ENGINES = (
    Headline("sglang_accept_length_mean", "SGLang, mean of requests (z-lab)"),
    Headline("sglang_accept_length_pooled", "SGLang, pooled (SpecForge)"),
    Headline("sglang_accept_rate_mean", "SGLang accept rate", is_share=True),
    Headline("vllm_acceptance_length", "vLLM acceptance length"),
    Headline("vllm_draft_acceptance_rate", "vLLM draft acceptance rate", is_share=True),
    Headline("zlab_acceptance_length", "z-lab, newer"),
    Headline("zlab_acceptance_length_april", "z-lab, April 2026"),
    Headline("deepspec_acceptance_length", "DeepSpec"),
    Headline("tau_all_anchors", "all-anchors mean"),
)
"""The same rounds as other programs would count them: no two of these are the same quantity."""


def engine_rows(drafters: Mapping[str, Any]) -> list[Row]:
    """The numbers that other programs would print for the same rounds."""
    overall = [drafter["overall"]["values"] for drafter in drafters.values()]
    return [
        Row(line.label, tuple(number(values.get(line.name), is_share=line.is_share) for values in overall))
        for line in ENGINES
    ]


def split_rows(results: Mapping[str, Any]) -> list[Row]:
    """The headline (tau) of each split, with its number of prompts; nothing when there is only one split."""
    drafters = results["drafters"]
    first = next(iter(drafters.values()), None)
    splits: Sequence[str] = list(first["splits"]) if first else []
    if len(splits) < 2:
        return []
    counts = {split: first["splits"][split]["counts"]["num_prompts"] if first else 0 for split in splits}
    return [
        Row(
            f"{tau_label(results)}, {split} ({counts[split]} prompts)",
            tuple(with_interval(drafter["splits"][split], headline_name(results)) for drafter in drafters.values()),
        )
        for split in splits
    ]


def strata_rows(
    drafters: Mapping[str, Any], *, skip: Sequence[str] = ("split",), min_prompts: int = 1
) -> dict[str, list[Row]]:
    """Tau by every stratum: stratum name -> one row a label.

    Args:
        drafters: the drafters of `results.json`.
        skip: strata that are shown elsewhere.
        min_prompts: leave out labels of fewer prompts; a stratum that has fewer than two labels then is left out whole.
    """
    found: dict[str, list[Row]] = {}
    first = next(iter(drafters.values()), None)
    for name, strata in (first["strata"] if first else {}).items():
        if name in skip or len(strata) < 2:
            continue
        by_drafter = [{one["label"]: one for one in drafter["strata"].get(name, [])} for drafter in drafters.values()]
        labels = [
            label
            for label in dict.fromkeys(label for table in by_drafter for label in table)
            if max(table[label]["num_prompts"] for table in by_drafter if label in table) >= min_prompts
        ]
        if len(labels) < 2:
            continue
        found[name] = [Row(label, tuple(_stratum_cell(table.get(label)) for table in by_drafter)) for label in labels]
    return found


def _stratum_cell(stratum: Mapping[str, Any] | None) -> str:
    if stratum is None or stratum["estimate"] is None:
        return "–"
    text = f"{stratum['estimate']:.2f}"
    if stratum["low"] is not None and stratum["high"] is not None:
        text += f" ({stratum['low']:.1f} to {stratum['high']:.1f})"
    num_prompts = stratum["num_prompts"]
    return f"{text}, {num_prompts} prompt{'s' * (num_prompts != 1)}"


def comparison_lines(results: Mapping[str, Any]) -> list[str]:
    """One sentence for each pair of drafters: the paired difference of tau, and what it means."""
    lines = []
    for pair in results.get("comparisons", []):
        tau = pair["statistics"][headline_name(results)]
        interval = tau["difference"]
        if interval["low"] is None or interval["high"] is None:
            lines.append(f"{pair['after']} against {pair['before']}: cannot tell, too few prompts")
            continue
        verdict = {
            "the second is better": f"{pair['after']} is better",
            "the first is better": f"{pair['before']} is better",
        }.get(tau["verdict"], tau["verdict"])
        smallest = tau["minimum_detectable"]
        detectable = "" if smallest is None else f"; the smallest difference so many prompts find: {smallest:.2f}"
        lines.append(
            f"{pair['after']} against {pair['before']}: {tau_label(results)} {interval['estimate']:+.3f} "
            f"({interval['low']:+.2f} to {interval['high']:+.2f}, paired by prompt, better on {tau['wins_after']}, "
            f"worse on {tau['wins_before']}): {verdict}{detectable}"
        )
    return lines


def position_rows(drafter: Mapping[str, Any]) -> list[Row]:
    """Per-position rates of one drafter, one cell a block position."""
    curves = drafter["overall"]["curves"]
    return [
        Row(label, tuple("–" if rate is None else f"{rate:.2f}" for rate in curves[name])) for name, label in _CURVES
    ]


def used_definitions(results: Mapping[str, Any], *, with_engines: bool = False) -> list[tuple[str, str]]:
    """Label and definition of everything the rows show.

    Args:
        results: the content of `results.json`.
        with_engines: also those of `engine_rows`.
    """
    definitions = results["definitions"]
    lines = [*(EXPECTED_HEADLINES if is_sampled(results) else ()), *HEADLINES]
    pairs = [(line.label, definitions[line.name]) for line in lines if line.name in definitions]
    first = next(iter(results["drafters"].values()), None)
    trees = [name for name in (first["overall"]["values"] if first else ()) if name.startswith(TREE)]
    pairs += [("DDTree tau, M nodes", tree_definition(definitions, name)) for name in trees[:1]]
    pairs += [(label, definitions[name]) for name, label in _CURVES if name in definitions]
    if with_engines:
        pairs += [(line.label, definitions[line.name]) for line in ENGINES if line.name in definitions]
    return pairs


def tree_definition(definitions: Mapping[str, str], name: str) -> str:
    """The definition of one tree budget, said for all of them."""
    return definitions[name].replace(f"the {name.removeprefix(TREE)} most", "the M most")
