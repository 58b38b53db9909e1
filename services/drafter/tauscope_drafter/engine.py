"""The drafting engine: loads drafters, fuses contexts, drafts anchors in batches of bounded memory. Needs no HTTP."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tauscope_drafter.arrays import checked, to_torch
from tauscope_drafter.cards import card_of
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.confinement import confined
from tauscope_drafter.context_cache import CachedContext, ContextCache
from tauscope_drafter.contract import ContextCounts, DraftJob, DraftResult, ProbeSource, StatesArray
from tauscope_drafter.expected import Judge
from tauscope_drafter.families.family import Drafts, Network, label_warnings
from tauscope_drafter.fingerprint import fingerprint
from tauscope_drafter.leases import EngineLease, Entry
from tauscope_drafter.loading import Loaded, Place, estimate_bytes, load
from tauscope_drafter.measured_layout import with_measured_layout
from tauscope_drafter.probing import network_under, states_under
from tauscope_drafter.registry import Registry
from tauscope_drafter.training_numerics import numerics_warnings
from tauscope_wire.errors import (
    DeadlineError,
    ErrorCode,
    InternalError,
    MismatchError,
    RequestError,
    TauscopeError,
    UnavailableError,
)
from tauscope_wire.messages import DrafterCard, ModelInfo, Numerics

log = logging.getLogger(__name__)

# Memory of the activations of one batch of anchors; small batches keep a CPU's caches warm, a GPU needs full tiles.
BATCH_BYTES = {"cpu": 16 << 20, "cuda": 1152 << 20}
# More anchors than this in a batch only lengthen the masked part of attention (see network.attention). On an H200,
# where a kernel has no such part, twice as many gained 1 % at real size for twice the memory (docs/benchmarks.md).
MAX_BATCH_ANCHORS = {"cpu": 32, "cuda": 256}


class Engine:
    """See `contract.DraftingEngine`.

    Args:
        place: device, dtype and the target's shared weights.
        drafter_bytes: bound on the memory of all drafters together, None for none.
        context_bytes: bound on the fused contexts kept.
        batch_bytes: bound on the activations of one batch of anchors.
        max_batch_anchors: bound on the anchors of one batch.
        strict_numerics: refuse states whose numerics are not those of a drafter's training, not just warn.
        probe_source: where texts of the target come from when a layout has to be measured; None forbids it.
    """

    def __init__(
        self,
        place: Place,
        *,
        drafter_bytes: int | None = None,
        context_bytes: int = 256 << 20,
        batch_bytes: int | None = None,
        max_batch_anchors: int | None = None,
        strict_numerics: bool = False,
        probe_source: ProbeSource | None = None,
    ) -> None:
        self.place = place
        self._registry: Registry[Entry] = Registry(drafter_bytes)
        self._cache = ContextCache(context_bytes)
        self._probe_source = probe_source
        self._strict_numerics = strict_numerics
        kind = place.device.type
        self._batch_bytes = batch_bytes or BATCH_BYTES.get(kind, BATCH_BYTES["cpu"])
        self._max_batch_anchors = max_batch_anchors or MAX_BATCH_ANCHORS.get(kind, MAX_BATCH_ANCHORS["cpu"])

    # --- the registry --------------------------------------------------------------------------------------------

    def cards(self) -> list[DrafterCard]:
        """All loaded drafters."""
        return [entry.card for entry in self._registry.entries()]

    def lease(self, name: str) -> EngineLease:
        """A drafter for one request."""
        return EngineLease(self._registry.get(name))

    def load(self, name: str, path: Path, options: LoadOptions, *, roots: Sequence[Path] | None) -> DrafterCard:
        """Load a checkpoint under a name; see `contract.DraftingEngine.load`."""
        if roots is not None:
            path = confined(path, roots)
        self._registry.reserve(name, estimate_bytes(path, options, self.place))
        try:
            loaded = with_measured_layout(load(path, options, self.place, name=name), self.place, self._probe_source)
            entry = Entry(loaded, card_of(name, loaded), self._cache)
            self._registry.put(name, entry)
        except BaseException:
            self._registry.release(name)
            raise
        log.info("drafter loaded", extra={"fields": {"drafter": name, "evidence": list(loaded.evidence)}})
        return entry.card

    def unload(self, name: str) -> None:
        """Forget a name; requests in flight finish."""
        entry = self._registry.remove(name)
        entry.is_unloaded = True
        self._cache.forget(entry)

    # --- drafting --------------------------------------------------------------------------------------------------

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftResult | BaseException]:
        """Run jobs one after another; a job that fails fails alone."""
        results: list[DraftResult | BaseException] = []
        for job in jobs:
            try:
                results.append(self.draft_one(job))
            except torch.OutOfMemoryError as error:
                log.error("out of memory while drafting", exc_info=error)
                torch.cuda.empty_cache()
                results.append(UnavailableError("the device is out of memory; try again", ErrorCode.OUT_OF_MEMORY))
            except TauscopeError as error:
                results.append(error)
            except Exception as error:
                log.error("a draft failed", exc_info=error)
                results.append(InternalError("drafting failed; the log of the service says why"))
        return results

    @torch.inference_mode()
    def draft_one(self, job: DraftJob) -> DraftResult:
        """Drafts of all anchors of one sequence."""
        lease = job.lease
        assert isinstance(lease, EngineLease)
        self._check_rank(lease.entry.loaded, job.top_k)
        loaded = lease.entry.loaded
        network = loaded.network if job.conditions is None else network_under(loaded, job.conditions)
        started = time.perf_counter()
        token_ids = torch.from_numpy(job.token_ids).to(self.place.device)
        cached, final = self._context(lease, network, job, token_ids)
        fused = time.perf_counter()
        anchors = job.anchors.tolist()
        step = self._anchors_per_batch(network, cached.num_rows)
        parts: list[Drafts] = []
        rates: list[tuple[Tensor, Tensor]] = []
        for start in range(0, len(anchors), step):
            if job.stop.is_set():
                raise DeadlineError("nobody waits for the answer any more", ErrorCode.CANCELLED)
            batch = anchors[start : start + step]
            judge = None if final is None else self._judge(final, batch, job)
            parts.append(
                network.draft(cached.context, batch, token_ids, top_k=job.top_k, labels=job.labels, judge=judge)
            )
            if judge is not None:
                rates.append(judge.rates())
        token_rows, top_ids, top_logprobs = (torch.cat(t).cpu() for t in zip(*parts, strict=True))
        done = time.perf_counter()
        return DraftResult(
            token_ids=token_rows.numpy().astype(np.int32),
            top_ids=top_ids.numpy().astype(np.int32),
            top_logprobs=top_logprobs.numpy(),
            warnings=[*lease.card.warnings, *cached.warnings, *label_warnings(network, labels=job.labels)],
            timing_ms={"fuse": 1000 * (fused - started), "draft": 1000 * (done - fused)},
            rates=_joined(rates) if rates else None,
        )

    def _context(
        self, lease: EngineLease, network: Network, job: DraftJob, token_ids: Tensor
    ) -> tuple[CachedContext, Tensor | None]:
        """The fused context, and the target's final states where the job compares with the target."""
        if job.sampling is None or job.states is None:
            return lease.pinned or self._fuse(lease.entry, network, job, token_ids), None
        planes = job.states.states
        final = to_torch(planes[-1]).to(self.place.device, self.place.dtype)
        taps = StatesArray(states=planes[:-1], numerics=job.states.numerics) if len(planes) > 1 else None
        return self._fuse(lease.entry, network, replace(job, states=taps), token_ids), final

    def _judge(self, final: Tensor, anchors: Sequence[int], job: DraftJob) -> Judge:
        if self.place.head is None:
            raise RequestError(
                "expected acceptance needs the target's head; start the service with --target-model",
                ErrorCode.MODE_CANNOT,
            )
        assert job.sampling is not None
        return Judge(final, self.place.head, anchors, job.sampling)

    @staticmethod
    def _check_rank(loaded: Loaded, top_k: int) -> None:
        bound = int(loaded.spec.extras.get("max_top_k", loaded.spec.draft_vocab_size))
        if top_k > bound:
            raise RequestError(
                f"top_k={top_k}: this drafter ranks at most {bound} tokens per row", details={"bound": bound}
            )

    def _fuse(self, entry: Entry, network: Network, job: DraftJob, token_ids: Tensor) -> CachedContext:
        spec = entry.loaded.spec
        if job.states is None:
            if spec.taps:
                raise InternalError("a job without states reached a drafter that reads them")
            states = torch.empty(0, len(job.token_ids), 0, device=self.place.device, dtype=self.place.dtype)
        else:
            states = checked(to_torch(job.states.states).to(self.place.device, self.place.dtype))
            if job.conditions is not None:
                taps = tuple(job.conditions.taps or spec.taps)
                states = states_under(states, job.conditions, taps=taps, place=self.place)
        warnings = [] if job.states is None else numerics_warnings(spec.training_numerics, job.states.numerics)
        if warnings and self._strict_numerics:
            raise MismatchError(
                f"drafter {entry.card.name}: {'; '.join(warnings)}; serve the target as in training, or start this "
                "service without --strict-numerics",
                ErrorCode.NUMERICS_MISMATCH,
                details={"warnings": warnings},
            )
        context = network.fuse(states, token_ids)
        cached = CachedContext(context, states.shape[1], context.nbytes, tuple(warnings)).labelled(job)
        if job.context_key is not None and not entry.is_unloaded:
            self._cache.put(entry, job.context_key, cached)
        return cached

    def _anchors_per_batch(self, network: Any, context_length: int) -> int:
        room = self._batch_bytes // max(1, network.anchor_bytes(context_length))
        return int(max(1, min(room, self._max_batch_anchors)))

    # --- what the service says about itself ------------------------------------------------------------------------

    def numerics(self, card: DrafterCard | None = None) -> Numerics:
        """Fingerprint of the arithmetic here."""
        return fingerprint(self.place, "" if card is None else f"sha256:{card.sha256}")

    @property
    def context_counts(self) -> ContextCounts:
        """Use of the fused contexts so far."""
        return self._cache.counts

    def target_model(self) -> ModelInfo | None:
        """The target whose weights are shared."""
        folder = self.place.target
        return None if folder is None else folder.model_info()


def _joined(rates: Sequence[tuple[Tensor, Tensor]]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    sampled, greedy = (torch.cat(t).cpu().numpy() for t in zip(*rates, strict=True))
    return sampled, greedy
