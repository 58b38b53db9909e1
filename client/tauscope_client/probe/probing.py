"""One probe from texts to a verdict."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tauscope_client.drafter import DrafterClient
from tauscope_client.failures import Failure
from tauscope_client.pairing import check_pair, pair_warnings
from tauscope_client.probe.asking import Asker, layers_needed
from tauscope_client.probe.condition import DECLARED
from tauscope_client.probe.conditions import plan_conditions
from tauscope_client.probe.dependence import dependence_of
from tauscope_client.probe.drafting import Drafting
from tauscope_client.probe.effects import Effect, Text, effects_of
from tauscope_client.probe.report import PROBE_SCHEMA, write_report
from tauscope_client.probe.verdict import Verdict, judge
from tauscope_client.progress import Progress
from tauscope_client.references.record import Reference
from tauscope_client.references.retries import Retries
from tauscope_client.target import TargetClient
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import RequestError

__all__ = ["Probe", "ProbeSettings", "probe"]

KEPT = "drafted.jsonl"
"""What was drafted so far, a line for each text."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """What a probe is made with.

    Attributes:
        drafter: name of a loaded drafter that reads hidden states.
        dtype: element type of the hidden states between the services.
        concurrency: texts in flight.
        seed: of the resampling and of the noise.
        passed: what the user said, for the report; no keys in it.
    """

    drafter: str
    dtype: WireDtype = "bfloat16"
    concurrency: int = 1
    seed: int = 0
    passed: Mapping[str, Any]


@dataclass(frozen=True)
class Probe:
    """What a probe came to.

    Attributes:
        path: the folder with `probe.json` and `probe.md`.
        verdict: the decision.
        effects: every condition against the declared one.
        content: the content of `probe.json`.
        failures: texts that could not be drafted on.
    """

    path: Path
    verdict: Verdict
    effects: tuple[Effect, ...]
    content: dict[str, Any]
    failures: tuple[Failure, ...]


def probe(
    settings: ProbeSettings,
    references: Sequence[Reference],
    out: Path,
    *,
    target: TargetClient,
    drafter: DrafterClient,
    progress: Progress,
    retries: Retries | None = None,
) -> Probe:
    """Draft on frozen texts under every condition, decide, and write the report.

    Args:
        settings: see there.
        references: texts with the target's own greedy answers; those shorter than two response tokens have no anchor.
        out: folder; what an earlier probe with the same settings drafted there is used.
        target: the target service.
        drafter: the drafter service.
        progress: told of every finished text and condition.
        retries: how often to ask again.

    Raises:
        RequestError: no text with an anchor, or a drafter that reads no hidden states.
        MismatchError: drafter and target do not fit, or the folder holds another probe.
        TauscopeError: a failure that concerns the whole probe. What was finished stays finished.
    """
    info, service, card = target.info(), drafter.info(), drafter.card(settings.drafter)
    check_pair(info, service, [card])
    if not card.taps:
        raise RequestError(f"drafter {card.name!r} ({card.family}) reads no hidden states: there is nothing to probe")
    usable = [reference for reference in references if len(reference.response_ids) > 1]
    if not usable:
        raise RequestError(f"{len(references)} texts, none with two response tokens or more: there is no anchor")
    plan = plan_conditions(card, info, longest_text=max(len(one.token_ids()) for one in usable))
    asker = Asker(
        target=target,
        drafter=drafter,
        card=card,
        layers=layers_needed(card, plan.conditions),
        dtype=settings.dtype,
        max_anchors=service.limits.max_anchors,
        retries=retries if retries is not None else Retries(),
    )
    identity: dict[str, Any] = {
        "drafter": card.model_dump(mode="json", exclude={"path", "name", "memory_bytes"}),
        "target": info.model.model_dump(mode="json"),
        "numerics": [info.numerics.model_dump(mode="json"), service.numerics.model_dump(mode="json")],
        "dtype": settings.dtype,
        "seed": settings.seed,
        "conditions": {one.name: one.conditions.in_force() for one in plan.conditions if one.conditions is not None},
    }
    drafting = Drafting(asker, plan, out / KEPT, progress, identity=_sha256(identity), seed=settings.seed)
    failures = drafting.run(usable, concurrency=settings.concurrency)
    texts = drafting.texts(usable)
    tried = drafting.tried()
    effects = effects_of(texts, tried, num_drafts=drafting.num_drafts, seed=settings.seed)
    num_conversations = len({text.conversation for text in texts})
    verdict = judge(effects, num_conversations=num_conversations)
    content = {
        "schema": PROBE_SCHEMA,
        "settings": dict(settings.passed),
        "drafter": identity["drafter"] | {"name": card.name},
        "target": identity["target"],
        "numerics": {"target": identity["numerics"][0], "drafter": identity["numerics"][1]},
        "num_texts": len(texts),
        "num_conversations": num_conversations,
        "num_anchors": sum(len(text.accepted[DECLARED.name]) for text in texts),
        "accepted_as_declared": _mean(texts),
        "verdict": verdict.to_dict(),
        "effects": [effect.to_dict() for effect in effects],
        "dependence": dependence_of(effects, card.taps, floor=verdict.floor).to_dict(),
        "left_out": [*plan.left_out, *drafting.refused.values()],
        "warnings": pair_warnings(info, [card]) + _text_warnings(usable),
        "failures": [failure.to_dict() for failure in failures],
    }
    write_report(out, content, effects)
    return Probe(out, verdict, tuple(effects), content, tuple(failures))


def _text_warnings(references: Sequence[Reference]) -> list[str]:
    sampled = [one.id for one in references if one.temperature > 0]
    drifted = [one.id for one in references if one.drifted]
    return [
        f"{len(ids)} texts (the first is {ids[0]!r}) {what}: what is accepted on them is a rough guide only"
        for ids, what in ((sampled, "were sampled, not greedy"), (drifted, "may not be the ids the server sampled"))
        if ids
    ]


def _mean(texts: Sequence[Text]) -> float:
    every = np.concatenate([text.accepted[DECLARED.name] for text in texts])
    return float(every.mean())


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
