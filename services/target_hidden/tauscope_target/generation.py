"""Continues a sequence token by token with a cache: the embedded reference.

Greedy takes the smallest id of the largest logit, as the logits summary does. The cache only ever grows: nothing is
rolled back, because a hybrid model's recurrent state cannot be.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from tauscope_target.anatomy import Anatomy
from tauscope_target.forward import DecoderRunner
from tauscope_target.jobs import GenerateJob, GenerateResult
from tauscope_target.logits import HeadBlocks
from tauscope_wire.errors import DeadlineError, ErrorCode, InternalError


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
        """Generate until a stop id or the length limit, then the tail.

        Raises:
            DeadlineError: the caller is gone (`cancelled`).
            InternalError: logits that are not finite (`non_finite_states`).
        """
        from transformers import DynamicCache

        cache = DynamicCache(config=self._anatomy.config)
        choose = _chooser(job)
        begun = clock()
        logits = self._feed(job.token_ids.tolist(), 0, cache, job.is_cancelled)
        prefilled = clock()
        text: list[int] = []
        tail: list[int] = []
        finish: Literal["stop", "length"] = "length"
        position = len(job.token_ids)
        while True:
            token = choose(logits)
            ended = finish == "stop" or len(text) >= job.max_new_tokens
            (tail if ended else text).append(token)
            if not ended and token in job.stop_token_ids:
                finish = "stop"
            ended = finish == "stop" or len(text) >= job.max_new_tokens
            if ended and len(tail) >= job.tail_tokens:
                break
            logits = self._feed([token], position, cache, job.is_cancelled)
            position += 1
        return GenerateResult(
            token_ids=text,
            tail_token_ids=tail,
            finish_reason=finish,
            timing_ms={"prefill": (prefilled - begun) * 1e3, "decode": (clock() - prefilled) * 1e3},
        )

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
