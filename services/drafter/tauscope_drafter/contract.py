"""What HTTP asks of the engine. Both sides know this module and not each other; it knows no torch."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_wire.messages import DraftConditions, DrafterCard, ModelInfo, Numerics


@dataclass(frozen=True, eq=False, kw_only=True)
class StatesArray:
    """Hidden states as they came over the wire.

    Attributes:
        states: bfloat16 (ml_dtypes) or float32 [P, T, Ht], planes in the order of the drafter's taps; row t belongs to
            position t. Not written to.
        token_ids: int32 [T'], T' >= T, the whole sequence that they were computed from; None for states sent inline.
        numerics: fingerprint of the target service that made them; None for states sent inline.
        way: how they came from the target service; None for states sent inline.
    """

    states: npt.NDArray[Any]
    token_ids: npt.NDArray[np.int32] | None = None
    numerics: Numerics | None = None
    way: Literal["mapped", "http"] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ProbeText:
    """A text of the target with its states, for measuring what a drafter's files do not say.

    Attributes:
        token_ids: int64 [T].
        start: first position of the response.
        states: planes as they were asked for, positions 0..T-1.
    """

    token_ids: npt.NDArray[np.int64]
    start: int
    states: StatesArray


ProbeSource = Callable[[Sequence[int]], Sequence[ProbeText]]
"""Gives texts of the target with the states of the canonical layers asked for."""


class Sampling(NamedTuple):
    """Settings of sampling; the same for target and drafter, as engines apply them.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 keeps all tokens.
        top_p: 1 keeps all tokens.
    """

    temperature: float
    top_k: int = 0
    top_p: float = 1.0


class ContextCounts(NamedTuple):
    """Use of the fused contexts that are kept.

    Attributes:
        hits: requests whose context was at hand.
        misses: requests whose states had to be read.
        nbytes: memory of all contexts kept.
    """

    hits: int
    misses: int
    nbytes: int


class Lease(Protocol):
    """A loaded drafter, kept alive for one request whatever happens to its name."""

    @property
    def card(self) -> DrafterCard:
        """Its description."""
        ...

    def has_context(self, key: str, token_ids: Sequence[int], num_rows: int) -> bool:
        """Whether fused context of `key` with at least `num_rows` positions is at hand; if so it is pinned.

        Args:
            key: name that it was kept under.
            token_ids: of the request.
            num_rows: positions that are needed.

        Raises:
            RequestError: it is the context of another sequence.
        """
        ...


@dataclass(eq=False, kw_only=True)
class DraftJob:
    """One `/draft_block` for the compute thread.

    Attributes:
        lease: the drafter.
        token_ids: int64 [n], the whole sequence.
        anchors: int32 [A], ascending.
        states: context, None when the drafter reads none or `lease.has_context` was true.
        context_key: name under which the fused context may be kept, None to forget it (inline states).
        top_k: ids per row.
        labels: see `DraftRequest`.
        conditions: what deviates from the drafter's declaration, None for nothing; `states` holds the planes that
            they name, and `context_key` is None.
        sampling: compare every row with the target under these settings in place of ranking it; `states` then has the
            plane `final_norm` last.
        stop: set when nobody wants the answer any more; looked at between batches.
    """

    lease: Lease
    token_ids: npt.NDArray[np.int64]
    anchors: npt.NDArray[np.int32]
    states: StatesArray | None
    context_key: str | None
    top_k: int
    labels: bool
    conditions: DraftConditions | None = None
    sampling: Sampling | None = None
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, eq=False, kw_only=True)
class DraftResult:
    """Drafts of all anchors.

    Attributes:
        token_ids: int32 [A, K].
        top_ids: int32 [A, K, k].
        top_logprobs: float32 [A, K, k].
        warnings: what the reader of the drafts must know.
        timing_ms: where the time went.
        rates: float32 [A, K] twice, see `expected.Judge.rates`; None unless the job asked for them.
    """

    token_ids: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    warnings: list[str]
    timing_ms: dict[str, float]
    rates: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None


class DraftingEngine(Protocol):
    """Everything the HTTP side may ask."""

    def cards(self) -> list[DrafterCard]:
        """All loaded drafters, in the order of loading."""
        ...

    def lease(self, name: str) -> Lease:
        """A drafter for one request.

        Raises:
            NotFoundError: no such name.
        """
        ...

    def load(self, name: str, path: Path, options: LoadOptions, *, roots: Sequence[Path] | None) -> DrafterCard:
        """Load a checkpoint under a name; blocks, so call it off the event loop.

        Raises:
            RequestError: the name is taken (`drafter_exists`).
            PermissionDeniedError: the path leaves `roots`.
            TooLargeError: over the byte budget.
            CheckpointError, MismatchError: see `loading.load`.
        """
        ...

    def unload(self, name: str) -> None:
        """Forget a name; requests in flight finish.

        Raises:
            NotFoundError: no such name.
        """
        ...

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[DraftResult | BaseException]:
        """Run jobs; called by the compute thread only."""
        ...

    def numerics(self, card: DrafterCard | None = None) -> Numerics:
        """Fingerprint of the service, or of the answers of one drafter."""
        ...

    @property
    def context_counts(self) -> ContextCounts:
        """Use of the fused contexts so far."""
        ...

    def target_model(self) -> ModelInfo | None:
        """The target whose weights are shared, None without one."""
        ...
