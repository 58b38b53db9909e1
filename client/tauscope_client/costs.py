"""What one draft and one plain decoding step cost, measured where they run, for the estimate of a speed-up.

A draft: the drafter service drafts one block at a time at anchors that the serving walk of the run visits, and says
itself how long its device took; queue, network and reading of states are left out, and so is the projection of the few
new context positions of a round, which a server adds to its cache. A step: the reference server answers the same prompt
with one token and with many, one request at a time; the difference over the further tokens is the time of a token,
free of prefill, network and start-up.

Nothing here measures a verification: it takes a server that verifies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median, quantiles
from typing import Any, Literal, TypeVar

from tauscope_client.drafter import DrafterClient
from tauscope_client.references.embedded import EmbeddedSource
from tauscope_client.references.retries import Retries
from tauscope_client.references.sampling import GREEDY
from tauscope_client.references.source import ReferenceSource
from tauscope_client.references.stability import turn_of
from tauscope_client.references.stored import StoredSource
from tauscope_client.runs.loading import Run
from tauscope_client.target import TargetClient
from tauscope_wire.errors import ErrorCode, InternalError, MismatchError, RequestError
from tauscope_wire.messages import DrafterCard, DraftRequest, HiddenByHandle, HiddenRequest, Numerics

__all__ = ["Cost", "assumed", "draft_cost", "given", "step_cost"]

MAX_TEXTS = 8
"""Texts that anchors and prompts are taken from, evenly spread."""

_QUARTILES = 4

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One cost.

    Attributes:
        ms: milliseconds.
        origin: `measured` here, `given` by the user, or `assumed`.
        words: where it comes from, for people.
        device: what it was measured on, None when nobody said.
    """

    ms: float
    origin: Literal["measured", "given", "assumed"]
    words: str
    device: str | None = None

    @property
    def is_of_a_cpu(self) -> bool:
        """It was measured on a CPU."""
        return self.device is not None and self.device.startswith("cpu")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return vars(self).copy()


def given(ms: float, option: str) -> Cost:
    """A cost that the user knows."""
    return Cost(ms=ms, origin="given", words=f"given by {option}")


def assumed(ms: float) -> Cost:
    """A verification that costs as much as a plain step."""
    return Cost(
        ms=ms,
        origin="assumed",
        words="assumed to cost as much as a plain step, as where the weights are read once either way: a GPU, one or a "
        "few requests at a time; --verify-ms says otherwise",
    )


def draft_cost(
    run: Run,
    card: DrafterCard,
    *,
    target: TargetClient,
    drafter: DrafterClient,
    num_rounds: int,
    retries: Retries | None = None,
) -> Cost:
    """Time single drafts at anchors that the walk of `run` visits.

    Args:
        run: a finished run of this drafter.
        card: the drafter, as loaded now.
        target: gives the states.
        drafter: drafts and times.
        num_rounds: drafts to time; each text has one more before them, which fills its caches.
        retries: how often to ask again.

    Raises:
        RequestError: the run has no rounds.
        InternalError: the service does not say how long it took.
        TauscopeError: a service's refusal.
    """
    retries = retries if retries is not None else Retries()
    walks = {turn_id: run.prompt(card.name, turn_id)["anchors"] for turn_id in run.turn_ids}
    chosen = spread([turn_id for turn_id, anchors in walks.items() if anchors], MAX_TEXTS)
    if not chosen:
        raise RequestError(f"{run.path}: no text with a round to time drafts at; give --draft-ms")
    times: list[float] = []
    numerics: Numerics | None = None
    for turn_id in chosen:
        reference = run.references[turn_id]
        hidden = HiddenRequest(token_ids=reference.token_ids(), layers=list(card.taps) or [-1])
        handle = retries.run(partial(target.hidden_handle, hidden)).handle
        anchors = spread(walks[turn_id], -(-num_rounds // len(chosen)))
        for at, anchor in enumerate([walks[turn_id][-1], *anchors]):
            request = DraftRequest(
                drafter=card.name,
                hidden=HiddenByHandle(handle=handle),
                token_ids=reference.token_ids(),
                response_start=len(reference.prompt_ids),
                anchors=[anchor],
                top_k=1,
            )
            answer = retries.run(partial(drafter.draft, request))
            numerics = answer.numerics
            if "draft" not in answer.timing_ms:
                raise InternalError(
                    f"the drafter service at {drafter.url} does not say how long a draft took; give --draft-ms",
                    ErrorCode.UNEXPECTED_ANSWER,
                )
            if at > 0:
                times.append(answer.timing_ms["draft"])
    assert numerics is not None
    device = _device(numerics)
    words = f"measured by the drafter service on {device}, {numerics.compute_dtype}: {_spread_of(times, 'rounds')}"
    return Cost(ms=median(times), origin="measured", words=words, device=device)


def step_cost(
    run: Run,
    source: ReferenceSource,
    *,
    target: TargetClient,
    num_tokens: int,
    num_texts: int,
    clock: Callable[[], float],
) -> Cost:
    """Time plain decoding of the reference server, one request at a time.

    Args:
        run: gives the prompts.
        source: the server.
        target: the target service, which may be the source itself.
        num_tokens: tokens of the longer answer.
        num_texts: prompts to ask, each three times: once for the caches, once for one token, once for many.
        clock: seconds.

    Raises:
        RequestError: a file takes no time; or every answer is over at once.
        MismatchError: the server speculates, so its time for a token is not that of a plain step.
        TauscopeError: a failure of the server.
    """
    if isinstance(source, StoredSource):
        raise RequestError("a file of references takes no time: name a server with --reference, or give --target-ms")
    facts = source.facts()
    if facts.get("speculating"):
        raise MismatchError(_SPECULATES, ErrorCode.UNEXPECTED_ANSWER)
    first_turns = [run.references[turn_id] for turn_id in run.turn_ids if run.references[turn_id].turn == 1]
    times: list[float] = []
    for reference in spread(first_turns, num_texts):
        text = "".join(run.texts.get(reference.id, [])[: len(reference.prompt_ids)]) or None
        turn = replace(turn_of(reference, None), text=text, sampling=GREEDY)
        source.complete(replace(turn, max_new_tokens=1))
        elapsed = []
        for limit in (1, num_tokens):
            begun = clock()
            answer = source.complete(replace(turn, max_new_tokens=limit))
            elapsed.append(clock() - begun)
            if answer.served is not None:
                raise MismatchError(_SPECULATES, ErrorCode.UNEXPECTED_ANSWER)
        further = len(answer.response_ids) - 1
        if further > 0:
            times.append(1e3 * max(0.0, elapsed[1] - elapsed[0]) / further)
    if not times or median(times) <= 0:
        raise RequestError("the answers are too short to time a step of the target; give --target-ms")
    if isinstance(source, EmbeddedSource):
        numerics = target.info().numerics
        device: str | None = _device(numerics)
        where = f"by the target service's own /generate on {device}, {numerics.compute_dtype}"
    else:
        device = None
        where = f"at the {facts.get('kind', source.name)} server, one request at a time, on a device it does not name"
        if facts.get("speculating") is None:
            where += ", and whether it speculates it does not say"
    words = f"measured {where}: {_spread_of(times, 'texts')}"
    return Cost(ms=median(times), origin="measured", words=words, device=device)


def spread(items: Sequence[T], num: int) -> list[T]:
    """At most `num` of them, evenly spread."""
    num = min(num, len(items))
    return [items[at * len(items) // num] for at in range(num)]


_SPECULATES = (
    "the reference server speculates itself, so its time for a token is not that of a plain step: start one without "
    "speculation, or give --target-ms"
)


def _device(numerics: Numerics) -> str:
    return f"{numerics.device} ({numerics.device_name})" if numerics.device_name else numerics.device


def _spread_of(times: Sequence[float], what: str) -> str:
    text = f"median of {len(times)} {what}"
    if len(times) < _QUARTILES:
        return text
    low, _, high = quantiles(times, n=_QUARTILES)
    return f"{text}, half of them {low:.3g} to {high:.3g} ms"
