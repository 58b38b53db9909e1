"""Asks the services: the states of one text once, then its drafts under one condition after another."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tauscope_client.drafter import DrafterClient
from tauscope_client.drafting import MAX_RECOMPUTES
from tauscope_client.probe.accepted import accepted_at_anchors
from tauscope_client.probe.condition import Condition
from tauscope_client.references.record import Reference
from tauscope_client.references.retries import Retries
from tauscope_client.target import TargetClient
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import GoneError
from tauscope_wire.messages import DrafterCard, DraftRequest, HiddenByHandle, HiddenRequest

__all__ = ["Asker", "Drafted", "layers_needed"]


class Drafted(NamedTuple):
    """Accepted drafts at every response anchor, int32 [A], and how many were drafted at each."""

    accepted: NDArray[np.int32]
    num_drafts: int


def layers_needed(card: DrafterCard, conditions: list[Condition]) -> list[int]:
    """Canonical ids of all planes that any of the conditions reads, ascending."""
    layers = set(card.taps)
    for condition in conditions:
        if condition.conditions is not None and condition.conditions.taps is not None:
            layers.update(condition.conditions.taps)
    return sorted(layers)


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Drafts on texts under conditions. Safe to use from several threads.

    Attributes:
        target: gives handles.
        drafter: drafts from them.
        card: the drafter.
        layers: planes of every handle.
        dtype: element type of the states between the services.
        max_anchors: anchors a request may hold.
        retries: how often to ask again.
    """

    target: TargetClient
    drafter: DrafterClient
    card: DrafterCard
    layers: list[int]
    dtype: WireDtype
    max_anchors: int
    retries: Retries

    def handle(self, reference: Reference) -> str:
        """A handle of the states of the text; free while the target service still keeps them."""
        request = HiddenRequest(token_ids=reference.token_ids(), layers=self.layers, dtype=self.dtype)
        return self.retries.run(lambda: self.target.hidden_handle(request)).handle

    def draft(self, reference: Reference, condition: Condition, *, seed: int) -> Drafted:
        """Draft at every response anchor of one text under one condition.

        Args:
            reference: a text with at least two response tokens, so that there is an anchor.
            condition: how to draft.
            seed: of the noise, another for each text.

        Raises:
            GoneError: the states vanish faster than they can be used.
            TauscopeError: a service's refusal; `not_supported` when the condition does not apply to this drafter.
        """
        for attempt in range(MAX_RECOMPUTES + 1):
            try:
                return self._draft(reference, condition, seed)
            except GoneError:
                if attempt == MAX_RECOMPUTES:
                    raise
        raise AssertionError("the last attempt raises")

    def _draft(self, reference: Reference, condition: Condition, seed: int) -> Drafted:
        conditions = condition.conditions
        if conditions is not None and conditions.noise:
            conditions = conditions.model_copy(update={"noise_seed": seed})
        handle = self.handle(reference)
        ids, start = reference.token_ids(), len(reference.prompt_ids)
        anchors = list(range(start, len(ids) - 1))
        step = self.max_anchors or len(anchors)
        parts, num_drafts = [], 0
        for at in range(0, len(anchors), step):
            asked = anchors[at : at + step]
            request = DraftRequest(
                drafter=self.card.name,
                hidden=HiddenByHandle(handle=handle),
                token_ids=ids,
                response_start=start,
                anchors=asked,
                top_k=1,
                conditions=conditions,
            )
            answer = self.retries.run(partial(self.drafter.draft, request))
            num_drafts = answer.drafter.drafts
            parts.append(accepted_at_anchors(answer.token_ids, ids, answer.anchors))
        return Drafted(np.concatenate(parts), num_drafts)
