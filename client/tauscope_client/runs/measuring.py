"""Measures a run from its files: every prompt that every drafter has finished, trees included."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tauscope_client.metrics import PromptResult, Ratio, expected_ratios, measure, tree_walks, weighted_rounds
from tauscope_client.references.record import Reference
from tauscope_client.runs.acceptance_files import acceptances_path, has_acceptances, read_acceptances
from tauscope_client.runs.files import safe_name
from tauscope_client.runs.traces import trace_of_files
from tauscope_client.runs.wide_rows import read_wide_rows

__all__ = ["drafts_path", "measure_run", "measure_turn", "target_path", "wide_rows_path"]


def drafts_path(run: Path, drafter: str, turn_id: str) -> Path:
    """Where the drafts of one drafter on one turn are."""
    return run / "drafts" / safe_name(drafter) / f"{safe_name(turn_id)}.npz"


def wide_rows_path(run: Path, drafter: str, turn_id: str) -> Path:
    """Where the wider rows for trees are."""
    return run / "trees" / safe_name(drafter) / f"{safe_name(turn_id)}.npz"


def target_path(run: Path, turn_id: str) -> Path:
    """Where the target's own choices on one turn are."""
    return run / "target" / f"{safe_name(turn_id)}.npz"


def measure_turn(
    run: Path, reference: Reference, drafter: str, *, tree_budgets: Sequence[int], vocab_size: int | None = None
) -> PromptResult:
    """Measure one drafter on one turn.

    Raises:
        TauscopeError: a file is damaged, belongs to another text, or breaks what the service promises.
    """
    trace = trace_of_files(reference, drafts_path(run, drafter, reference.id), target_path(run, reference.id))
    found = measure(trace)
    if reference.temperature > 0 and not trace.is_empty:
        rates = read_acceptances(acceptances_path(run, drafter, reference.id), reference)
        expected = expected_ratios(trace, {"sampled": rates.sampled, "greedy": rates.greedy})
        rounds = weighted_rounds(trace, rates.sampled)
        found = replace(found, ratios={**found.ratios, **expected}, weighted_rounds=rounds)
    if not tree_budgets or trace.is_empty:
        return found
    wide = read_wide_rows(wide_rows_path(run, drafter, reference.id), reference)
    walks = tree_walks(trace, tree_budgets, wide=wide, vocab_size=vocab_size)
    trees = {
        f"ddtree_tau_{budget}": Ratio(sum(tree.walk.emitted), tree.walk.num_rounds)
        for budget, tree in walks.items()
        if tree.is_exact
    }
    return replace(found, ratios={**found.ratios, **trees})


def measure_run(
    run: Path,
    references: Mapping[str, Reference],
    drafters: Sequence[str],
    *,
    tree_budgets: Sequence[int],
    vocab_size: int | None = None,
) -> tuple[dict[str, list[PromptResult]], list[str]]:
    """Measure the turns that every drafter has finished, so that tables compare equal prompts.

    Returns:
        Drafter -> its prompts in the order of `references`; and the turns that are left out.
    """

    def is_finished(reference: Reference) -> bool:
        turn_id = reference.id
        return all(
            drafts_path(run, name, turn_id).exists()
            and has_acceptances(run, name, reference)
            and (not tree_budgets or wide_rows_path(run, name, turn_id).exists())
            for name in drafters
        )

    complete = [reference for reference in references.values() if is_finished(reference)]
    measured = {
        name: [
            measure_turn(run, reference, name, tree_budgets=tree_budgets, vocab_size=vocab_size)
            for reference in complete
        ]
        for name in drafters
    }
    done = {reference.id for reference in complete}
    return measured, [turn_id for turn_id in references if turn_id not in done]
