"""References from the target service itself: the same model that gives the hidden states."""

from typing import Any

from tauscope_client.references.retries import Retries
from tauscope_client.references.source import Completion, Turn
from tauscope_client.target import TargetClient
from tauscope_wire.messages import GenerateRequest

__all__ = ["EmbeddedSource"]


class EmbeddedSource:
    """`POST /generate` of the target service."""

    name = "target"

    def __init__(
        self, target: TargetClient, *, retries: Retries | None = None, deadline_s: float | None = None
    ) -> None:
        """Ask `target`, again while it is full or restarting; an answer may take `deadline_s`."""
        self._target = target
        self._deadline_s = deadline_s
        self._retries = retries if retries is not None else Retries()

    def facts(self) -> dict[str, Any]:
        """The model of the target service."""
        info = self._target.info()
        return {
            "kind": "tauscope-target",
            "model": info.model.id,
            "revision": info.model.revision,
            "version": info.version,
            "speculating": False,
            "deterministic": info.numerics.device == "cpu",
        }

    def complete(self, turn: Turn) -> Completion:
        """Ids chosen as the turn says, and the tail in the same call."""
        request = GenerateRequest(
            token_ids=list(turn.prompt_ids),
            max_new_tokens=turn.max_new_tokens,
            temperature=turn.sampling.temperature,
            top_k=turn.sampling.top_k,
            top_p=turn.sampling.top_p,
            seed=turn.sampling.seed,
            stop_token_ids=list(turn.stop_token_ids),
            tail_tokens=turn.tail_tokens,
            deadline_s=self._deadline_s,
        )
        answer = self._retries.run(lambda: self._target.generate(request))
        return Completion(
            response_ids=answer.token_ids, finish_reason=answer.finish_reason, tail_ids=answer.tail_token_ids
        )
