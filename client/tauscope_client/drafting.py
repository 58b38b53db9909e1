"""Hidden states by handle and drafts at all anchors of one text, for any number of drafters.

The states never pass through this process. A handle may vanish at any moment; then the same request is computed again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tauscope_client.drafter import DrafterClient
from tauscope_client.kept import KeptStates
from tauscope_client.metrics import WideRows
from tauscope_client.references.record import Reference
from tauscope_client.references.retries import Retries
from tauscope_client.runs.draft_files import Drafts, TargetView
from tauscope_client.target import TargetClient
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode, GoneError, InternalError
from tauscope_wire.layers import EMBEDDING
from tauscope_wire.messages import (
    DrafterCard,
    DraftRequest,
    HiddenByHandle,
    HiddenRequest,
    LogitsRequest,
)
from tauscope_wire.tensors import DraftAnswer

__all__ = ["DraftPlan", "Draftsman", "TextJob"]

MAX_RECOMPUTES = 5
"""A store that loses the same handle this often is too small for the work; more tries would only loop."""

TARGET_TOP_K = 2
"""The two best ids of the target: their margin tells a near-tie from a disagreement."""

_NO_LIMIT = 1 << 30

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """How drafts are made.

    Attributes:
        top_k: candidates kept of each draft row.
        dtype: element type of the hidden states between the services.
        with_logits: also ask for the target's own choice at every position.
        deadline_s: how long one request may take, None for the service's own bound.
        max_anchors: anchors a draft request may hold; more are asked in several requests. 0 means any number.
    """

    top_k: int
    dtype: WireDtype
    with_logits: bool
    deadline_s: float | None = None
    max_anchors: int = 0


class Draftsman:
    """Drafts on references with a target and a drafter service. Safe to use from several threads."""

    def __init__(
        self, target: TargetClient, drafter: DrafterClient, plan: DraftPlan, *, retries: Retries | None = None
    ) -> None:
        """Work by `plan`."""
        self._target = target
        self._drafter = drafter
        self._plan = plan
        self._retries = retries if retries is not None else Retries()

    def open(self, reference: Reference, cards: Sequence[DrafterCard]) -> "TextJob":
        """Work on one text for these drafters: one forward of the target serves them all."""
        # drafters without taps read no states, but a handle holds at least one plane: the cheapest is the embedding's
        taps = sorted({tap for card in cards for tap in card.taps}) or [EMBEDDING]
        return TextJob(reference, lambda: self._hidden(reference, taps), self._draft, self._rows)

    def _hidden(self, reference: Reference, taps: list[int]) -> KeptStates:
        logits = LogitsRequest(top_k=TARGET_TOP_K, next_token=True) if self._plan.with_logits else None
        request = HiddenRequest(
            token_ids=reference.token_ids(),
            layers=taps,
            dtype=self._plan.dtype,
            logits=logits,
            deadline_s=self._plan.deadline_s,
        )
        return self._retries.run(lambda: self._target.hidden_handle(request))

    def _draft(self, reference: Reference, card: DrafterCard, kept: KeptStates) -> Drafts:
        start, total = len(reference.prompt_ids), len(reference.prompt_ids) + len(reference.response_ids)
        anchors = list(range(start, total - 1))
        size = self._plan.max_anchors or _NO_LIMIT
        parts = [
            self._ask(reference, card, kept, anchors[at : at + size], self._plan.top_k)
            for at in range(0, len(anchors), size)
        ]
        found = [position for part in parts for position in part.anchors.tolist()]
        if found != anchors:
            raise InternalError(
                f"drafter {card.name!r} answered {len(found)} anchors for the {len(anchors)} asked for",
                ErrorCode.UNEXPECTED_ANSWER,
            )
        facts = {
            "turn_id": reference.id,
            "drafter": card.name,
            "drafter_sha256": card.sha256,
            "prompt_sha256": reference.prompt_sha256,
            "num_tokens": total,
            "hidden_digest": kept.digest,
            "dtype": kept.dtype,
            "warnings": sorted({warning for part in parts for warning in part.drafter.warnings}),
            "timing_ms": _added([part.timing_ms for part in parts]),
        }
        if not parts:  # a response of one token has no anchor: nothing to ask
            shape = (0, card.drafts, self._plan.top_k)
            return Drafts(
                anchors=np.zeros(0, np.int32),
                token_ids=np.zeros(shape[:2], np.int32),
                top_ids=np.zeros(shape, np.int32),
                top_logprobs=np.zeros(shape, np.float32),
                facts=facts,
            )
        return Drafts(
            anchors=np.concatenate([part.anchors for part in parts]),
            token_ids=np.concatenate([part.token_ids for part in parts]),
            top_ids=np.concatenate([part.top_ids for part in parts]),
            top_logprobs=np.concatenate([part.top_logprobs for part in parts]),
            facts=facts,
        )

    def _rows(
        self, reference: Reference, card: DrafterCard, kept: KeptStates, anchors: list[int], top_k: int
    ) -> WideRows:
        size = self._plan.max_anchors or _NO_LIMIT
        parts = [
            self._ask(reference, card, kept, anchors[at : at + size], top_k) for at in range(0, len(anchors), size)
        ]
        return WideRows(
            anchors=np.concatenate([part.anchors for part in parts]),
            top_ids=np.concatenate([part.top_ids for part in parts]),
            top_logprobs=np.concatenate([part.top_logprobs for part in parts]),
        )

    def _ask(
        self, reference: Reference, card: DrafterCard, kept: KeptStates, anchors: list[int], top_k: int
    ) -> DraftAnswer:
        is_all = len(anchors) == len(reference.response_ids) - 1
        request = DraftRequest(
            drafter=card.name,
            hidden=HiddenByHandle(handle=kept.handle),
            token_ids=reference.token_ids(),
            response_start=len(reference.prompt_ids),
            anchors="response" if is_all else anchors,
            top_k=top_k,
            # A head that reads its own drafts gets the labels instead: up to the first miss they are the same, and only
            # so do its lower-ranked candidates mean what a top-k walk takes them for.
            labels=card.rows_depend_on_drafts,
            deadline_s=self._plan.deadline_s,
        )
        return self._retries.run(lambda: self._drafter.draft(request))


class TextJob:
    """One text: its states are computed when first needed, and again whenever they have vanished."""

    def __init__(
        self,
        reference: Reference,
        hidden: Callable[[], KeptStates],
        draft: Callable[[Reference, DrafterCard, KeptStates], Drafts],
        rows: Callable[[Reference, DrafterCard, KeptStates, list[int], int], WideRows],
    ) -> None:
        """Nothing is sent yet."""
        self._reference = reference
        self._hidden = hidden
        self._draft_with = draft
        self._rows_with = rows
        self._kept: KeptStates | None = None
        self._num_recomputed = 0

    @property
    def num_recomputed(self) -> int:
        """How often the states had vanished."""
        return self._num_recomputed

    def receipt(self) -> KeptStates:
        """Where the states are kept.

        Raises:
            TauscopeError: the target service's refusal.
        """
        if self._kept is None:
            self._kept = self._hidden()
        return self._kept

    def draft(self, card: DrafterCard) -> Drafts:
        """Draft at every response position.

        Raises:
            GoneError: the states vanish faster than they can be used.
            TauscopeError: a service's refusal.
        """
        return self._with_states(lambda kept: self._draft_with(self._reference, card, kept))

    def rows(self, card: DrafterCard, anchors: Sequence[int], *, top_k: int) -> WideRows:
        """Draft at some positions, with more candidates; errors as `draft`."""
        return self._with_states(lambda kept: self._rows_with(self._reference, card, kept, list(anchors), top_k))

    def _with_states(self, work: Callable[[KeptStates], T]) -> T:
        while True:
            try:
                return work(self.receipt())
            except GoneError as error:
                self._kept = None
                self._num_recomputed += 1
                if self._num_recomputed > MAX_RECOMPUTES:
                    raise GoneError(
                        f"the hidden states of {self._reference.id!r} vanished {self._num_recomputed} times before "
                        "the drafter could read them: the target service's store is too small for this many requests; "
                        "lower --concurrency or enlarge the store",
                        details=error.details,
                    ) from error

    def target_view(self) -> TargetView | None:
        """The target's own choices over the response, None when its head was not asked."""
        kept = self.receipt()
        if kept.logits is None:
            return None
        start = len(self._reference.prompt_ids)
        rows = slice(start - 1, start - 1 + len(self._reference.response_ids))
        logits, following = kept.logits, kept.logits.next_logprobs
        assert following is not None  # asked for, and the reader compares
        return TargetView(
            argmax_ids=logits.argmax_ids[rows],
            top_ids=logits.top_ids[rows],
            top_logprobs=logits.top_logprobs[rows],
            response_logprobs=following[rows],
            facts={
                "turn_id": self._reference.id,
                "prompt_sha256": self._reference.prompt_sha256,
                "digest": kept.digest,
                "vocab_size": kept.model.vocab_size,
                "prompt_mean_logprob": float(following[: start - 1].mean()) if start > 1 else None,
                "timing_ms": kept.timing_ms,
            },
        )


def _added(timings: Sequence[dict[str, float]]) -> dict[str, Any]:
    total: dict[str, float] = {}
    for timing in timings:
        for name, value in timing.items():
            total[name] = total.get(name, 0.0) + value
    return total
