"""Builders of hand-made and random traces."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tauscope_client.metrics.trace import Trace

STOP = 7
_FILLER = 1_000_000  # fillers start here: never equal to a label


def build_trace(
    places: dict[int, Sequence[int]],
    response: Sequence[int],
    *,
    num_drafts: int,
    top_k: int = 1,
    prompt: Sequence[int] = (900, 901),
    **fields: Any,
) -> Trace:
    """A trace in which the label of draft j at response index i stands at place `places[i][j]` of its row.

    Places not given, and places from `top_k` on, mean "not among the candidates". Anchors are all response positions
    but the last.
    """
    tail = list(fields.get("tail_ids", ()))
    truth = [*response, *tail]
    num_anchors = max(len(response) - 1, 0)
    top_ids = _FILLER + np.arange(num_anchors * num_drafts * top_k).reshape(num_anchors, num_drafts, top_k)
    for index, row in places.items():
        for column, place in enumerate(row):
            if place < top_k and index + 1 + column < len(truth):
                top_ids[index, column, place] = truth[index + 1 + column]
    fields.setdefault("prompt_id", "p")
    return Trace(
        token_ids=[*prompt, *response],
        response_start=len(prompt),
        anchors=len(prompt) + np.arange(num_anchors),
        draft_ids=top_ids[:, :, 0],
        top_ids=top_ids,
        top_logprobs=np.broadcast_to(-np.arange(top_k, dtype=np.float32), top_ids.shape),
        **fields,
    )


def build_random_trace(seed: int, *, num_drafts: int, top_k: int, vocab: int = 5, longest: int = 24) -> Trace:
    """A trace over a tiny vocabulary, so that matches, stops inside blocks and limits all happen often."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, longest))
    prompt = rng.integers(1, vocab, size=int(rng.integers(1, 4)))
    stop_ids = frozenset({0} if rng.random() < 0.7 else ())
    response = rng.choice(vocab, size=length, p=_mostly_nonzero(vocab))
    limit = int(rng.integers(1, longest)) if rng.random() < 0.5 else None
    tail = rng.choice(vocab, size=int(rng.integers(0, num_drafts + 3)), p=_mostly_nonzero(vocab))
    truth = np.concatenate([response, tail])
    top_ids = np.stack([rng.permutation(vocab)[:top_k] for _ in range((length - 1) * num_drafts)] or [np.zeros(top_k)])
    top_ids = top_ids[: (length - 1) * num_drafts].reshape(length - 1, num_drafts, top_k).astype(np.int32)
    for index in range(length - 1):
        for column in range(num_drafts):
            if index + 1 + column < truth.size and rng.random() < 0.5:
                row, label = top_ids[index, column], truth[index + 1 + column]
                row[row == label] = row[0]
                row[0] = label
    return Trace(
        prompt_id=f"random-{seed}",
        token_ids=np.concatenate([prompt, response]),
        response_start=prompt.size,
        anchors=prompt.size + np.arange(length - 1),
        draft_ids=top_ids[..., 0],
        top_ids=top_ids,
        top_logprobs=-np.sort(rng.random(top_ids.shape), axis=-1),
        stop_ids=stop_ids,
        max_response_tokens=limit,
        tail_ids=tail,
        target_argmax=np.where(rng.random(length) < 0.8, response, 0),
    )


def _mostly_nonzero(vocab: int) -> list[float]:
    return [0.06, *([0.94 / (vocab - 1)] * (vocab - 1))]


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., Trace]:
    return build_trace


@pytest.fixture(scope="session")
def make_random_trace() -> Callable[..., Trace]:
    return build_random_trace


@pytest.fixture(scope="session")
def golden_traces() -> list[Trace]:
    """Two responses, blocks of four: accepted [3, 0, 1] and [2], nothing cut."""
    first = {0: (0, 0, 0), 4: (1, 0, 0), 5: (0, 1, 0)}
    return [
        build_trace(first, range(10, 18), num_drafts=3, prompt_id="R1", max_response_tokens=100, stop_ids={17}),
        build_trace(
            {0: (0, 0, 1)}, range(20, 24), num_drafts=3, prompt_id="R2", max_response_tokens=100, stop_ids={23}
        ),
    ]
