"""What passes between the HTTP side and the compute side: plain data, no torch, no FastAPI.

`app` and `engine` never import each other; both import this module, and `cli` joins them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tauscope_wire.dtypes import WireDtype
from tauscope_wire.layers import Plane
from tauscope_wire.messages import Message, ModelInfo, Numerics, SelfTest
from tauscope_wire.tensors import LogitsSummary


@dataclass(frozen=True)
class LogitsSpec:
    """Which summary of the model's own distribution is wanted per position."""

    top_k: int
    next_token: bool


@dataclass(frozen=True, eq=False)
class HiddenJob:
    """Hidden states of one sequence.

    Attributes:
        token_ids: int32 [T], the whole sequence, every id inside the vocabulary.
        layers: canonical ids of the planes, in the order wanted, -1 for the embedding output.
        final_norm: one more plane, the last layer after the final norm.
        start: first position of the answer.
        stop: one past the last position of the answer; positions from `stop` on are never computed.
        dtype: element type of the answer.
        logits: summary at the same positions, or None.
        is_cancelled: asked between chunks; True abandons the job.
    """

    token_ids: npt.NDArray[np.int32]
    layers: tuple[int, ...]
    final_norm: bool
    start: int
    stop: int
    dtype: WireDtype = "bfloat16"
    logits: LogitsSpec | None = None
    is_cancelled: Callable[[], bool] = field(default=lambda: False)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Names of the planes in the order of the answer."""
        return (*self.layers, "final_norm") if self.final_norm else self.layers

    @property
    def num_positions(self) -> int:
        """Rows per plane."""
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class HiddenResult:
    """What a `HiddenJob` gives.

    Attributes:
        states: [P, n, H] in the job's dtype, C-contiguous; nobody else writes to it any more.
        logits: the summary asked for, or None.
        timing_ms: `pass`, the time of the whole pass, in milliseconds.
        pass_tokens: real tokens of the pass that this job shared.
    """

    states: npt.NDArray[Any]
    logits: LogitsSummary | None
    timing_ms: dict[str, float]
    pass_tokens: int


@dataclass(frozen=True, eq=False)
class GenerateJob:
    """A slice of the continuation of one sequence, greedy or sampled with a seed.

    A generation comes in slices, so that other work gets its turn between them: the first job has no session, each
    further one carries the session that the result before gave.

    Attributes:
        token_ids: int32 [T], the prompt.
        max_new_tokens: length limit of the text.
        temperature: 0 is greedy.
        top_p: nucleus; 1 keeps everything.
        top_k: candidates kept; 0 keeps everything.
        seed: of the sampler.
        stop_token_ids: ids that end the text, included in it.
        tail_tokens: further tokens after the end, kept apart.
        session: what the slice before left; belongs to the engine.
        is_cancelled: asked before every token.
    """

    token_ids: npt.NDArray[np.int32]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_token_ids: frozenset[int]
    tail_tokens: int
    session: object | None = None
    is_cancelled: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True)
class GenerateResult:
    """All ids generated so far; `finish_reason` is meant once `session` is None: the generation is complete then."""

    token_ids: list[int]
    tail_token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    timing_ms: dict[str, float]
    session: object | None = None


Job = HiddenJob | GenerateJob
Result = HiddenResult | GenerateResult


@dataclass(frozen=True)
class TargetFacts:
    """What the HTTP side must know of the engine: fixed once the service is ready."""

    model: ModelInfo
    architecture: str
    layer_types: list[str]
    numerics: Numerics
    mode: str
    pass_tokens: int
    longest_tokens: int | None
    mode_cannot: list[str]
    deepest_layer: int
    dtypes: list[WireDtype]
    has_head: bool
    can_generate: bool
    max_positions: int
    self_tests: list[SelfTest]
    noise_floor: dict[str, Any] | None = None


class Engine(Protocol):
    """The compute side as the HTTP side sees it."""

    @property
    def facts(self) -> TargetFacts:
        """What `/info` shows."""
        ...

    def execute(self, jobs: Sequence[Job]) -> Sequence[Result | BaseException]:
        """Run one pass: one result or exception per job, in order."""
        ...


class Tokens(Protocol):
    """The model's tokenizer as the HTTP side sees it. Safe to call from several threads."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_messages` can work."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, no special tokens added."""
        ...

    def encode_messages(
        self, messages: Sequence[Message], *, template_kwargs: dict[str, Any], add_generation_prompt: bool
    ) -> list[int]:
        """Ids of the rendered chat template."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of the ids."""
        ...

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Text of each id by itself."""
        ...
