"""One evaluation from prompts to numbers: references, states, drafts, metrics, each kept as soon as it is done."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tauscope_client.draft_stage import DraftStage
from tauscope_client.drafter import DrafterClient
from tauscope_client.drafting import DraftPlan, Draftsman
from tauscope_client.expect_stage import keep_acceptances
from tauscope_client.failures import Failure
from tauscope_client.metrics import PromptResult
from tauscope_client.pairing import can_give_logits, check_pair, pair_warnings
from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptFile
from tauscope_client.provenance import manifest_of
from tauscope_client.references.collect import ReferencePlan, collect_references
from tauscope_client.references.record import Reference
from tauscope_client.references.retries import Retries
from tauscope_client.references.source import ReferenceSource
from tauscope_client.references.stability import Stability, check_stability
from tauscope_client.references.stored import read_references
from tauscope_client.runs.agreement import disagreements_of
from tauscope_client.runs.cautions import cautions_of
from tauscope_client.runs.files import write_json, write_text
from tauscope_client.runs.folder import RunFolder, read_manifest
from tauscope_client.runs.measuring import measure_run
from tauscope_client.runs.pieces import add_pieces, shown_ids
from tauscope_client.runs.results import results_of
from tauscope_client.runs.served import served_beside_predicted
from tauscope_client.runs.summary import summary_markdown
from tauscope_client.runs.thinking import Mode, trained_mode
from tauscope_client.target import TargetClient
from tauscope_client.tree_rows import STORED_BUDGETS, TreePlan
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import RequestError, UnreachableError

__all__ = ["EvalSettings", "Outcome", "evaluate"]

STAGE = "drafts"


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """What an evaluation is made with.

    Attributes:
        drafters: names of drafters that the drafter service has loaded, in the order they are reported.
        references: how references are made.
        top_k: candidates kept of each draft row.
        dtype: element type of the hidden states between the services.
        concurrency: texts in flight at the two services, which pack what arrives together.
        tree_budgets: DDTree budgets to walk with; rows that are too narrow to decide one are asked for again.
        num_repeats: references to ask for again, to see whether the server repeats itself.
        may_flush: empty the reference server's cache for that.
        deadline_s: how long one request to a service may take, None for the service's own bound.
        trained_thinking: whether the drafters were trained on thinking, where their files do not say it.
        passed: what the user said, for the manifest; no keys in it.
    """

    drafters: tuple[str, ...]
    references: ReferencePlan
    top_k: int = 8
    dtype: WireDtype = "bfloat16"
    concurrency: int = 2
    tree_budgets: tuple[int, ...] = STORED_BUDGETS
    num_repeats: int = 0
    may_flush: bool = False
    deadline_s: float | None = None
    trained_thinking: Mode | None = None
    passed: Mapping[str, Any]

    def in_force(self) -> dict[str, Any]:
        """The settings that decide the numbers, defaults included."""
        return {
            "max_new_tokens": self.references.max_new_tokens,
            "tail_tokens": self.references.tail_tokens,
            "template_kwargs": dict(self.references.template_kwargs),
            "max_turns": self.references.max_turns,
            "reference_concurrency": self.references.concurrency,
            "top_k": self.top_k,
            "dtype": self.dtype,
            "tree_budgets": list(self.tree_budgets),
            **self.references.sampling.to_dict(),
        }


@dataclass(frozen=True)
class Outcome:
    """What an evaluation came to.

    Attributes:
        path: the run folder.
        results: the content of `results.json`.
        failures: prompts that could not be evaluated.
        is_resumed: whether an earlier run was continued.
    """

    path: Path
    results: dict[str, Any]
    failures: tuple[Failure, ...]
    is_resumed: bool


def evaluate(
    settings: EvalSettings,
    prompts: PromptFile,
    out: Path,
    *,
    target: TargetClient,
    drafter: DrafterClient,
    source: ReferenceSource,
    progress: Progress,
    retries: Retries | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Outcome:
    """Evaluate drafters on prompts, continuing whatever `out` holds already.

    Returns:
        The outcome; `failures` is empty when every prompt was evaluated.

    Raises:
        MismatchError: drafter and target do not fit, the folder holds a run with other settings or is in use.
        TauscopeError: any failure that concerns the whole run. What was finished stays finished.
    """
    info, service = target.info(), drafter.info()
    cards = [drafter.card(name) for name in settings.drafters]
    check_pair(info, service, cards)
    warnings = pair_warnings(info, cards, template_kwargs=settings.references.template_kwargs)
    manifest = manifest_of(
        settings.passed,
        settings.in_force(),
        prompts=prompts,
        reference=_reference_facts(out, source, settings.references.turn_ids(prompts.records)),
        target=info,
        service=service,
        cards=cards,
        warnings=warnings,
        now=clock(),
    )
    with RunFolder(out, manifest) as folder:
        progress.note(f"run folder: {out}" + (" (continued)" if folder.is_resumed else ""))
        references, failures = collect_references(
            prompts.records,
            settings.references,
            target=target,
            source=source,
            finished=folder.finished_references(),
            keep=folder.add_reference,
            progress=progress,
        )
        stability = folder.stability()
        if stability is None and settings.num_repeats and references:
            stability = _ask_again(settings, prompts, references, source, progress)
            if stability is not None:
                folder.write_stability(stability)
        plan = DraftPlan(
            top_k=settings.top_k,
            dtype=settings.dtype,
            with_logits=can_give_logits(info),
            deadline_s=settings.deadline_s,
            max_anchors=service.limits.max_anchors,
        )
        draftsman = Draftsman(target, drafter, plan, retries=retries)
        work = DraftStage(
            folder,
            draftsman,
            target,
            cards,
            progress,
            with_logits=plan.with_logits,
            trees=TreePlan.of(settings.tree_budgets, vocab_size=info.model.vocab_size, limits=service.limits),
        )
        failures += work.run(list(references.values()), concurrency=settings.concurrency)
        failures += keep_acceptances(
            folder.path,
            list(references.values()),
            cards,
            target=target,
            drafter=drafter,
            progress=progress,
            retries=retries,
            dtype=settings.dtype,
            concurrency=settings.concurrency,
        )
        names = [card.name for card in cards]
        measured, incomplete = measure_run(
            folder.path, references, names, tree_budgets=settings.tree_budgets, vocab_size=info.model.vocab_size
        )
        trained = {card.name: settings.trained_thinking or trained_mode(card) for card in cards}
        warnings += cautions_of(folder.path, references, measured, incomplete, trained_thinking=trained)
        if stability is not None and (caution := stability.caution()) is not None:
            warnings.append(caution)
        results = results_of(
            measured,
            failures=[failure.to_dict() for failure in failures],
            warnings=warnings,
            served=served_beside_predicted(references.values(), measured),
            sampling=settings.references.sampling,
            stability=None if stability is None else stability.to_dict(),
            disagreements=disagreements_of(folder.path, references, next(iter(measured.values()), [])),
        )
        _keep_pieces(folder.path, measured, target)
        folder.write_failures(results["failures"])
        write_json(folder.path / "results.json", results)
        write_text(folder.path / "summary.md", summary_markdown(results, folder.manifest))
        return Outcome(out, results, tuple(failures), folder.is_resumed)


def _keep_pieces(run: Path, measured: Mapping[str, Sequence[PromptResult]], target: TargetClient) -> None:
    """Text of drafted tokens for the report; a service without a tokenizer leaves the report with ids."""
    try:
        add_pieces(run, shown_ids(run, measured), target.pieces)
    except RequestError:
        return


def _reference_facts(out: Path, source: ReferenceSource, wanted: Sequence[str]) -> dict[str, Any]:
    """Facts of the source, or of the run when it has every reference: then the server may be gone."""
    references = out / "references.jsonl"
    if (out / "manifest.json").exists() and references.exists():
        facts = read_manifest(out).reference
        finished = {reference.id for reference in read_references(references, tolerate_torn_end=True)}
        if facts.get("source") == source.name and set(wanted) <= finished:
            return facts
    return {"source": source.name, **source.facts()}


def _ask_again(
    settings: EvalSettings,
    prompts: PromptFile,
    references: Mapping[str, Reference],
    source: ReferenceSource,
    progress: Progress,
) -> Stability | None:
    """Whether the server repeats itself; None when it is not there any more."""
    try:
        return check_stability(
            list(references.values()),
            prompts.records,
            source,
            num_asked=settings.num_repeats,
            progress=progress,
            may_flush=settings.may_flush,
        )
    except UnreachableError:
        progress.note("the reference server is gone: whether it repeats itself was not checked")
        return None
