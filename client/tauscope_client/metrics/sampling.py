"""Acceptance at temperature above 0, as expectations from target and draft distributions.

Nothing is sampled here. p is the target's distribution and q the draft's, both over the whole vocabulary and both after
the temperature, top-k and top-p of the engine: acceptance of other distributions is the acceptance of another engine.

Sources: Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318) for the rule; deepseek-ai/DeepSpec for
the expected length along a given path, its temperature threshold and its fallback of the residual; liranringel/ddtree
for trees with one target sample a node.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tauscope_client.metrics.prompts import Ratio
from tauscope_client.metrics.trace import Trace

__all__ = [
    "acceptance",
    "distribution",
    "equality_acceptance",
    "expected_accepted",
    "expected_rounds",
    "expected_walk",
    "on_vocabulary",
    "one_hot_acceptance",
    "residual",
    "tree_expected_accepted",
]

# DeepSpec: below this a temperature means greedy, and a residual of less mass is rounding.
GREEDY_TEMPERATURE = 1e-5
_MIN_RESIDUAL = 1e-8

FloatArray = NDArray[np.float64]


def distribution(
    logits: NDArray[np.floating], *, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> FloatArray:
    """Probabilities as an engine samples from: temperature, then the k best, then the smallest set of mass top_p.

    Args:
        logits: [..., V].
        temperature: below 1e-5 all mass is on the best token (the lowest id of equal ones).
        top_k: keep the k best and those that tie with the last of them.
        top_p: keep the best tokens until their mass reaches this, the one that crosses it included.

    Returns:
        float64 [..., V].

    Raises:
        ValueError: a negative temperature, top_k below 1, or top_p outside (0, 1].
    """
    if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise ValueError(
            f"temperature={temperature}, top_k={top_k}, top_p={top_p}: expected 0 or more, at least 1, within (0, 1]"
        )
    scores = np.asarray(logits, dtype=np.float64)
    vocab_size = scores.shape[-1]
    if temperature < GREEDY_TEMPERATURE:
        return np.asarray(np.arange(vocab_size) == scores.argmax(axis=-1)[..., None], dtype=np.float64)
    scores = (scores - scores.max(axis=-1, keepdims=True)) / temperature
    if top_k is not None and top_k < vocab_size:
        last = -np.partition(-scores, top_k - 1, axis=-1)[..., top_k - 1 : top_k]
        scores = np.where(scores >= last, scores, -np.inf)
    probabilities = _normalised(np.exp(scores))
    if top_p is not None and top_p < 1:
        order = np.argsort(-probabilities, axis=-1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, axis=-1)
        is_kept = np.cumsum(ranked, axis=-1) - ranked < top_p
        mask = np.zeros(probabilities.shape, dtype=np.bool_)
        np.put_along_axis(mask, order, is_kept, axis=-1)
        probabilities = _normalised(np.where(mask, probabilities, 0.0))
    return probabilities


def on_vocabulary(q: FloatArray, token_ids: NDArray[np.integer], *, vocab_size: int) -> FloatArray:
    """Spread a draft distribution over a reduced vocabulary [..., Vd] onto the target's [..., V]; zero elsewhere.

    q stays normalised over the draft's tokens and p over the whole vocabulary: renormalising p over the draft's tokens,
    as some training losses do, is no acceptance rate.
    """
    out = np.zeros((*q.shape[:-1], vocab_size))
    out[..., token_ids] = q
    return out


def acceptance(p: FloatArray, q: FloatArray) -> FloatArray:
    """Chance that rejection sampling accepts a token drawn from q: sum min(p, q) = 1 - total variation, [...]."""
    return np.asarray(np.minimum(p, q).sum(axis=-1))


def one_hot_acceptance(p: FloatArray, drafts: NDArray[np.integer]) -> FloatArray:
    """The same when the draft is greedy: p of the drafted token, [...]."""
    return np.asarray(np.take_along_axis(p, np.asarray(drafts)[..., None], axis=-1)[..., 0])


def equality_acceptance(p: FloatArray, q: FloatArray) -> FloatArray:
    """Chance that independent draws from p and q agree: sum p q, never above `acceptance` (older z-lab/dflash)."""
    return np.asarray((p * q).sum(axis=-1))


def residual(p: FloatArray, q: FloatArray) -> FloatArray:
    """What to sample from after a rejection: max(p - q, 0) normalised, p itself where next to nothing is left."""
    rest = np.maximum(p - q, 0.0)
    mass = rest.sum(axis=-1, keepdims=True)
    return np.where(mass > _MIN_RESIDUAL, rest / np.maximum(mass, _MIN_RESIDUAL), p)


def expected_accepted(alphas: FloatArray) -> FloatArray:
    """Expected accepted drafts of a chain, [...]: sum over k of the product of the first k acceptances.

    The expected emitted tokens are one more (the bonus, or the residual sample). Along a given text this is an
    estimate: later acceptances are conditioned on its tokens instead of on accepted samples.

    Args:
        alphas: [..., K], acceptance of each draft position.
    """
    return np.asarray(np.cumprod(alphas, axis=-1).sum(axis=-1))


def expected_walk(trace: Trace, alphas: FloatArray) -> Ratio:
    """Tokens and expected rounds of the serving walk along the trace's text; their quotient is the expected tau.

    Args and errors as `expected_rounds`.
    """
    chances, _ = expected_rounds(trace, alphas)
    return Ratio(chances.size, float(chances.sum()))


def expected_rounds(trace: Trace, alphas: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Chance that the serving walk begins a round at each position, and what such a round emits on average.

    An anchor is visited with the chance that some earlier round stops just before it; those chances follow from left to
    right. With acceptances of 0 and 1 this is the walk itself.

    Args:
        trace: gives the anchors and the end of the text; its anchors must cover every response position before it.
        alphas: float64 [A, K], acceptance of each draft position at each anchor.

    Returns:
        Chances and emitted tokens (cut at the end of the text), float64 [R - 1] each, for the R - 1 positions of the
        response before its end; the sum of their products is R - 1.

    Raises:
        ValueError: shapes or anchors do not fit.
    """
    end = trace.num_response_tokens
    steps = max(end - 1, 0)
    start = trace.response_start
    needed = start + np.arange(steps)
    if alphas.shape != trace.draft_ids.shape or not np.array_equal(trace.anchors[:steps], needed):
        raise ValueError(
            f"prompt {trace.prompt_id!r}: alphas {list(alphas.shape)} and {trace.anchors.size} anchors: expected "
            f"{list(trace.draft_ids.shape)} and every position of {start}..{start + steps - 1}"
        )
    reach = np.cumprod(alphas[:steps], axis=1)  # chance that the first k drafts are all accepted
    before = np.concatenate([np.ones((steps, 1)), reach], axis=1)
    stops = before - np.concatenate([reach, np.zeros((steps, 1))], axis=1)  # chance of exactly 0..K accepted
    visits = np.zeros(steps + trace.num_drafts + 1)
    visits[0] = 1.0
    for index in range(steps):
        visits[index + 1 : index + 2 + trace.num_drafts] += visits[index] * stops[index]
    left = steps - np.arange(steps)
    emitted = 1.0 + np.where(np.arange(1, trace.num_drafts + 1) < left[:, None], reach, 0.0).sum(axis=1)
    return visits[:steps], emitted


def tree_expected_accepted(parents: Sequence[int], node_p: FloatArray) -> float:
    """Expected accepted depth of a tree that is verified with one target sample a node.

    The sum over nodes of the product of p along the way from the root; the expected emitted tokens are one more.

    Args:
        parents: number of each node's parent, from 1, 0 for the root; parents come first, as in `ddtree.Tree`.
        node_p: float64 [M], target probability of each node's token given its prefix.
    """
    reached = [1.0]
    for parent, p in zip(parents, node_p.tolist(), strict=True):
        reached.append(reached[parent] * p)
    return sum(reached[1:])


def _normalised(weights: FloatArray) -> FloatArray:
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
