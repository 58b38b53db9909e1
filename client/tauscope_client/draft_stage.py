"""Drafts on every reference with every drafter, skipping what an earlier run finished; each answer is kept at once."""

from collections.abc import Sequence
from threading import Lock

from tauscope_client.drafting import Draftsman, TextJob
from tauscope_client.failures import Failure, concerns_one_prompt
from tauscope_client.progress import Progress
from tauscope_client.references.record import Reference
from tauscope_client.runs.draft_files import read_drafts, read_target, write_drafts, write_target
from tauscope_client.runs.folder import RunFolder
from tauscope_client.runs.traces import trace_of
from tauscope_client.runs.wide_rows import write_wide_rows
from tauscope_client.target import TargetClient
from tauscope_client.tree_rows import TreePlan, decide_trees
from tauscope_client.workers import run_all
from tauscope_wire.errors import RequestError, TauscopeError
from tauscope_wire.messages import DrafterCard

__all__ = ["STAGE", "DraftStage"]

STAGE = "drafts"


class DraftStage:
    """Works through references; safe against kills because every file appears whole."""

    def __init__(
        self,
        folder: RunFolder,
        draftsman: Draftsman,
        target: TargetClient,
        cards: Sequence[DrafterCard],
        progress: Progress,
        *,
        with_logits: bool,
        trees: TreePlan | None,
    ) -> None:
        """Keep answers in `folder`.

        Args:
            folder: open for writing.
            draftsman: asks the services.
            target: turns ids into text, for the report.
            cards: the drafters.
            progress: told of every finished draft.
            with_logits: also keep the target's own choices.
            trees: how wide rows must be, None for no trees.
        """
        self._folder = folder
        self._draftsman = draftsman
        self._target = target
        self._cards = cards
        self._progress = progress
        self._with_logits = with_logits
        self._trees = trees
        self._texts = folder.finished_texts()
        self._failures: list[Failure] = []
        self._lock = Lock()

    def run(self, references: Sequence[Reference], *, concurrency: int) -> list[Failure]:
        """Work through the references; the failures, in their order.

        Raises:
            TauscopeError: a failure that concerns the whole run.
        """
        missing = {reference.id: self._missing(reference) for reference in references}
        total = len(references) * len(self._cards)
        self._progress.start(STAGE, total, done=total - sum(map(len, missing.values())))
        run_all(lambda reference: self._one(reference, missing[reference.id]), references, concurrency=concurrency)
        order = {reference.id: index for index, reference in enumerate(references)}
        return sorted(self._failures, key=lambda failure: order[failure.id])

    def _missing(self, reference: Reference) -> list[DrafterCard]:
        return [
            card
            for card in self._cards
            if not self._folder.drafts_path(card.name, reference.id).exists()
            or (self._trees is not None and not self._folder.wide_rows_path(card.name, reference.id).exists())
        ]

    def _one(self, reference: Reference, missing: Sequence[DrafterCard]) -> None:
        stage = "hidden"
        try:
            self._keep_text(reference)
            wants_view = self._with_logits and not self._folder.target_path(reference.id).exists()
            if not missing and not wants_view:
                return
            job = self._draftsman.open(reference, self._cards)
            view = job.target_view() if wants_view else None
            if view is not None:
                write_target(self._folder.target_path(reference.id), view)
            for card in missing:
                stage = f"draft {card.name}"
                self._draft(job, reference, card)
                self._progress.advance(STAGE)
        except TauscopeError as error:
            if not concerns_one_prompt(error):
                raise
            with self._lock:
                self._failures.append(Failure.of(reference.id, stage, error))
            self._progress.note(f"{reference.id}: {error.message}")

    def _draft(self, job: TextJob, reference: Reference, card: DrafterCard) -> None:
        path = self._folder.drafts_path(card.name, reference.id)
        if not path.exists():
            write_drafts(path, job.draft(card))
        if self._trees is not None:
            target_path = self._folder.target_path(reference.id)
            view = read_target(target_path) if target_path.exists() else None
            trace = trace_of(reference, read_drafts(path), view)
            wide = decide_trees(trace, self._trees, lambda anchors, top_k: job.rows(card, anchors, top_k=top_k))
            write_wide_rows(self._folder.wide_rows_path(card.name, reference.id), wide, reference)

    def _keep_text(self, reference: Reference) -> None:
        """Pieces of text for the report; a service without a tokenizer leaves the report with ids."""
        if reference.id in self._texts:
            return
        try:
            pieces = self._target.pieces([*reference.token_ids(), *reference.tail_ids])
        except RequestError:
            return
        self._folder.add_text(reference.id, pieces)
