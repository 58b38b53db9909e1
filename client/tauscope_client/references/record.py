"""The stored form of one reference: prompt ids, the target's answer, and where it came from."""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

__all__ = ["REFERENCE_SCHEMA", "FinishReason", "Reference", "Served", "ids_sha256"]

REFERENCE_SCHEMA = "tauscope.reference/1"

FinishReason = Literal["stop", "length", "other"]


def ids_sha256(ids: Sequence[int]) -> str:
    """Hash of token ids: SHA-256 over them as little-endian int32."""
    return hashlib.sha256(np.asarray(ids, dtype="<i4").tobytes()).hexdigest()


class Served(BaseModel):
    """What a server that speculates itself counted for the same request, in its own words.

    Attributes:
        completion_tokens: tokens of the answer, the prefill token included.
        verify_steps: verification passes.
        accept_length: as the server defines it: SGLang's `spec_accept_length` = completion_tokens / verify_steps;
            vLLM's 1 + accepted / drafts, not cut at the end of the text.
        histogram: steps by accepted drafts, when the server gives it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    completion_tokens: int
    verify_steps: int
    accept_length: float | None = None
    histogram: list[int] | None = None

    @property
    def emitted(self) -> int:
        """Tokens that verification steps added to the text; the first token comes from prefill."""
        return self.completion_tokens - 1


class Reference(BaseModel):
    """One line of `references.jsonl`.

    Attributes:
        id: the turn's name, see `PromptRecord.turn_id`; `conversation` is the prompt's id and `turn` counts from 1.
        prompt_ids: rendered by the target service's `/tokenize`; `prompt_sha256` is `ids_sha256` of them.
        response_ids: the answer; a stop id that ended it is included.
        tail_ids: how the target's greedy text goes on after the end; empty when nobody asked.
        finish_reason: `stop` (a stop id), `length` (the limit), or `other` (the server's own reason).
        max_new_tokens: the limit that was asked for.
        temperature: 0 for greedy text, the only kind that replay predicts exactly.
        top_k, top_p, seed: how a text at a temperature above 0 was sampled; the seed is this text's own.
        source: `sglang`, `openai`, `target` or `file`; `engine` has its facts (kind, version, model, ...).
        drifted: True when the ids may not be the ids the server sampled; `drift` says why.
        served: the server's own speculation counters, or None.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    schema_: Literal["tauscope.reference/1"] = Field(default="tauscope.reference/1", alias="schema")
    id: str
    conversation: str
    turn: int = 1
    split: str
    tags: dict[str, str] = Field(default_factory=dict)
    prompt_ids: list[int] = Field(min_length=1)
    prompt_sha256: str
    response_ids: list[int]
    tail_ids: list[int] = Field(default_factory=list)
    finish_reason: FinishReason
    stop_token_ids: list[int]
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    source: str
    engine: dict[str, Any] = Field(default_factory=dict)
    drifted: bool = False
    drift: str = ""
    served: Served | None = None

    def token_ids(self) -> list[int]:
        """Prompt and response in one list, the tail left out."""
        return [*self.prompt_ids, *self.response_ids]
