"""One evaluation from prompts to numbers: references, states, drafts, metrics, each kept as soon as it is done."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from tauscope_client.drafter import DrafterClient
from tauscope_client.drafting import DraftPlan, Draftsman
from tauscope_client.failures import Failure, concerns_one_prompt
from tauscope_client.metrics import PromptResult, measure
from tauscope_client.pairing import can_give_logits, check_pair, pair_warnings
from tauscope_client.progress import Progress
from tauscope_client.prompts import PromptFile
from tauscope_client.provenance import manifest_of
from tauscope_client.references.collect import ReferencePlan, collect_references
from tauscope_client.references.record import Reference
from tauscope_client.references.retries import Retries
from tauscope_client.references.source import ReferenceSource
from tauscope_client.runs.cautions import cautions_of
from tauscope_client.runs.draft_files import write_drafts, write_target
from tauscope_client.runs.files import write_json, write_text
from tauscope_client.runs.folder import RunFolder
from tauscope_client.runs.results import results_of
from tauscope_client.runs.served import served_beside_predicted
from tauscope_client.runs.summary import summary_markdown
from tauscope_client.runs.traces import trace_of_files
from tauscope_client.target import TargetClient
from tauscope_client.workers import run_all
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import RequestError, TauscopeError
from tauscope_wire.messages import DrafterCard

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
        passed: what the user said, for the manifest; no keys in it.
    """

    drafters: tuple[str, ...]
    references: ReferencePlan
    top_k: int = 8
    dtype: WireDtype = "bfloat16"
    concurrency: int = 2
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
            "temperature": 0.0,
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
    warnings = pair_warnings(info, cards)
    manifest = manifest_of(
        settings.passed,
        settings.in_force(),
        prompts=prompts,
        reference=source.facts(),
        target=info,
        service=service,
        cards=cards,
        warnings=warnings,
        now=clock(),
    )
    with RunFolder(out, manifest) as folder:
        references, failures = collect_references(
            prompts.records,
            settings.references,
            target=target,
            source=source,
            finished=folder.finished_references(),
            keep=folder.add_reference,
            progress=progress,
        )
        plan = DraftPlan(
            top_k=settings.top_k,
            dtype=settings.dtype,
            with_logits=can_give_logits(info),
            max_anchors=service.limits.max_anchors,
        )
        draftsman = Draftsman(target, drafter, plan, retries=retries)
        work = _Drafting(folder, draftsman, target, cards, progress, with_logits=plan.with_logits)
        failures += work.run(list(references.values()), concurrency=settings.concurrency)
        measured, incomplete = _measure(folder, references, cards)
        warnings += work.warnings() + cautions_of(references.values(), measured, incomplete)
        results = results_of(
            measured,
            failures=[failure.to_dict() for failure in failures],
            warnings=warnings,
            served=served_beside_predicted(references.values(), measured),
        )
        folder.write_failures(results["failures"])
        write_json(folder.path / "results.json", results)
        write_text(folder.path / "summary.md", summary_markdown(results, folder.manifest))
        return Outcome(out, results, tuple(failures), folder.is_resumed)


class _Drafting:
    """Drafts on every reference with every drafter, skipping what an earlier run finished."""

    def __init__(
        self,
        folder: RunFolder,
        draftsman: Draftsman,
        target: TargetClient,
        cards: Sequence[DrafterCard],
        progress: Progress,
        *,
        with_logits: bool,
    ) -> None:
        self._folder = folder
        self._draftsman = draftsman
        self._target = target
        self._cards = cards
        self._progress = progress
        self._with_logits = with_logits
        self._texts = folder.finished_texts()
        self._failures: list[Failure] = []
        self._warnings: set[str] = set()
        self._lock = Lock()

    def run(self, references: Sequence[Reference], *, concurrency: int) -> list[Failure]:
        """Work through the references; the failures, in their order."""
        missing = {reference.id: self._missing(reference) for reference in references}
        total = len(references) * len(self._cards)
        self._progress.start(STAGE, total, done=total - sum(map(len, missing.values())))
        run_all(lambda reference: self._one(reference, missing[reference.id]), references, concurrency=concurrency)
        order = {reference.id: index for index, reference in enumerate(references)}
        return sorted(self._failures, key=lambda failure: order[failure.id])

    def warnings(self) -> list[str]:
        """What the drafter service said about the pairs."""
        return sorted(self._warnings)

    def _missing(self, reference: Reference) -> list[DrafterCard]:
        return [card for card in self._cards if not self._folder.drafts_path(card.name, reference.id).exists()]

    def _one(self, reference: Reference, missing: Sequence[DrafterCard]) -> None:
        stage = "hidden"
        try:
            self._keep_text(reference)
            target_path = self._folder.target_path(reference.id)
            wants_view = self._with_logits and not target_path.exists()
            if not missing and not wants_view:
                return
            job = self._draftsman.open(reference, self._cards)
            view = job.target_view() if wants_view else None
            if view is not None:
                write_target(target_path, view)
            for card in missing:
                stage = f"draft {card.name}"
                drafts = job.draft(card)
                write_drafts(self._folder.drafts_path(card.name, reference.id), drafts)
                with self._lock:
                    self._warnings.update(f"drafter {card.name!r}: {text}" for text in drafts.facts["warnings"])
                self._progress.advance(STAGE)
        except TauscopeError as error:
            if not concerns_one_prompt(error):
                raise
            with self._lock:
                self._failures.append(Failure.of(reference.id, stage, error))
            self._progress.note(f"{reference.id}: {error.message}")

    def _keep_text(self, reference: Reference) -> None:
        """Pieces of text for the report; a service without a tokenizer leaves the report with ids."""
        if reference.id in self._texts:
            return
        try:
            pieces = self._target.detokenize([*reference.token_ids(), *reference.tail_ids]).pieces
        except RequestError:
            return
        self._folder.add_text(reference.id, pieces)


def _measure(
    folder: RunFolder, references: Mapping[str, Reference], cards: Sequence[DrafterCard]
) -> tuple[dict[str, list[PromptResult]], list[str]]:
    """Measure the prompts that every drafter has finished, and name the others: tables compare equal prompts."""
    complete = [
        reference
        for reference in references.values()
        if all(folder.drafts_path(card.name, reference.id).exists() for card in cards)
    ]
    measured = {
        card.name: [
            measure(
                trace_of_files(reference, folder.drafts_path(card.name, reference.id), folder.target_path(reference.id))
            )
            for reference in complete
        ]
        for card in cards
    }
    done = {reference.id for reference in complete}
    return measured, [turn_id for turn_id in references if turn_id not in done]
