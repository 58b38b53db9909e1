"""Continues a sequence token by token with a cache: the embedded reference.

Greedy takes the smallest id of the largest logit, as the logits summary does. The cache only ever grows: nothing is
rolled back, because a hybrid model's recurrent state cannot be.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tauscope_target.anatomy import Anatomy
from tauscope_target.forward import DecoderRunner
from tauscope_target.jobs import GenerateJob, GenerateResult
from tauscope_target.logits import HeadBlocks
from tauscope_wire.errors import DeadlineError, ErrorCode, InternalError

SLICE_TOKENS = 16
"""Tokens of a slice: a caller who waits behind a generation waits for this many tokens at most."""


@dataclass(eq=False)
class Session:
    """What a generation carries from slice to slice. Dropping it frees its cache."""

    cache: Any
    choose: Callable[[torch.Tensor], int]
    position: int
    logits: torch.Tensor
    text: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    finish: Literal["stop", "length"] = "length"
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def is_complete(self, job: GenerateJob) -> bool:
        """Whether text and tail have all their tokens."""
        return self.is_text_over(job) and len(self.tail) >= job.tail_tokens

    def is_text_over(self, job: GenerateJob) -> bool:
        """Whether the text has ended, by a stop id or by its length."""
        return self.finish == "stop" or len(self.text) >= job.max_new_tokens


class Generator:
    """Generates with the model of a `DecoderRunner`, on the same thread.

    Args:
        runner: runs the decoder.
        head: the output projection.
        device: where activations live.
    """

    def __init__(self, runner: DecoderRunner, head: HeadBlocks, *, device: torch.device) -> None:
        self._runner = runner
        self._anatomy: Anatomy = runner.anatomy
        self._head = head
        self._device = device

    def run(self, job: GenerateJob, *, clock: Callable[[], float] = time.perf_counter) -> GenerateResult:
        """Generate one slice: until a stop id or the length limit, then the tail, or until the slice is full.

        Raises:
            DeadlineError: the caller is gone (`cancelled`).
            InternalError: logits that are not finite (`non_finite_states`).
        """
        begun = clock()
        session = job.session
        if session is None:
            session = self._begin(job)
            session.prefill_s = clock() - begun
            begun = clock()
        assert isinstance(session, Session)
        for _ in range(SLICE_TOKENS):
            self._step(session, job)
            if session.is_complete(job):
                break
        session.decode_s += clock() - begun
        return GenerateResult(
            token_ids=list(session.text),
            tail_token_ids=list(session.tail),
            finish_reason=session.finish,
            timing_ms={"prefill": session.prefill_s * 1e3, "decode": session.decode_s * 1e3},
            session=None if session.is_complete(job) else session,
        )

    def _begin(self, job: GenerateJob) -> Session:
        from transformers import DynamicCache

        cache = DynamicCache(config=self._anatomy.config)
        logits = self._feed(job.token_ids.tolist(), 0, cache, job.is_cancelled)
        return Session(cache, _chooser(job), len(job.token_ids), logits)

    def _step(self, session: Session, job: GenerateJob) -> None:
        """Choose a token; feed it if another one will be needed."""
        token = session.choose(session.logits)
        if session.is_text_over(job):
            session.tail.append(token)
        else:
            session.text.append(token)
            if token in job.stop_token_ids:
                session.finish = "stop"
        if not session.is_complete(job):
            session.logits = self._feed([token], session.position, session.cache, job.is_cancelled)
            session.position += 1

    def _feed(
        self, token_ids: Sequence[int], position: int, cache: Any, is_cancelled: Callable[[], bool]
    ) -> torch.Tensor:
        """Feed tokens in chunks; logits [vocab] (float32) of the last one."""
        last: torch.Tensor | None = None
        width = self._runner.chunk_tokens if self._anatomy.is_chunkable else len(token_ids)
        for start in range(0, len(token_ids), width):
            if is_cancelled():
                raise DeadlineError("the caller of this generation is gone", ErrorCode.CANCELLED)
            piece = torch.tensor([token_ids[start : start + width]])
            positions = torch.arange(position + start, position + start + piece.shape[1], device=self._device)
            output = self._anatomy.decoder(
                inputs_embeds=self._runner.embed(piece),
                position_ids=positions[None],
                use_cache=True,
                **{self._anatomy.cache_keyword: cache},
            )
            last = output.last_hidden_state[:, -1]
        assert last is not None, "a prompt is never empty here"
        logits = torch.cat([torch.nn.functional.linear(last, w, b)[0] for _, w, b in self._head.blocks()])
        scaled = self._anatomy.scale_logits(logits).float()
        if not bool(torch.isfinite(scaled).all()):
            raise InternalError("the model gave logits that are not finite", ErrorCode.NON_FINITE_STATES)
        return scaled


def _chooser(job: GenerateJob) -> Callable[[torch.Tensor], int]:
    """Greedy, or seeded sampling on the CPU: the same seed gives the same tokens from the same logits."""
    if job.temperature == 0:
        return lambda logits: int(torch.argmax(logits))
    random = torch.Generator().manual_seed(job.seed)

    def sample(logits: torch.Tensor) -> int:
        ordered, ids = torch.sort((logits.cpu() / job.temperature).double(), descending=True, stable=True)
        probabilities = torch.softmax(ordered, dim=-1)
        if job.top_k > 0:
            probabilities[job.top_k :] = 0
            probabilities /= probabilities.sum()
        if job.top_p < 1:
            before = probabilities.cumsum(-1) - probabilities
            probabilities[before >= job.top_p] = 0  # the first token that crosses top_p stays
        return int(ids[torch.multinomial(probabilities / probabilities.sum(), 1, generator=random)])

    return sample
