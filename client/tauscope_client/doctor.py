"""Looks at both services and says what is wrong and what to do; computes almost nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tauscope_client.addresses import TUNNEL
from tauscope_client.drafter import DrafterClient
from tauscope_client.pairing import pair_problems, pair_warnings
from tauscope_client.provenance import client_version
from tauscope_client.target import TargetClient
from tauscope_wire.errors import MismatchError, TauscopeError, UnreachableError
from tauscope_wire.messages import DrafterServiceInfo, HiddenRequest, TargetInfo

__all__ = ["Finding", "examine"]

Level = Literal["ok", "note", "problem"]

SMOKE_TOKENS = 8


@dataclass(frozen=True)
class Finding:
    """One line of the examination.

    Attributes:
        level: `ok`, `note` (works, worth knowing), or `problem`.
        text: what was found.
        advice: what to do, empty when there is nothing.
        error: the failure behind a problem, if one was raised.
    """

    level: Level
    text: str
    advice: str = ""
    error: TauscopeError | None = None


def examine(target: TargetClient, drafter: DrafterClient) -> Iterator[Finding]:
    """Examine both services, one finding after the other."""
    info = service = None
    try:
        info = target.info()
    except TauscopeError as error:
        yield _failure("target", target.url, error)
    if info is not None:
        yield from _target(info)
        yield from _smoke(target, info)
    try:
        service = drafter.info()
    except TauscopeError as error:
        yield _failure("drafter", drafter.url, error)
    if service is not None:
        yield from _drafter(service)
    if info is not None and service is not None:
        yield from _pair(info, service)


def _failure(name: str, url: str, error: TauscopeError) -> Finding:
    advice = ""
    if isinstance(error, UnreachableError):
        advice = (
            f"start it with tauscope-{name}, or, when it listens on loopback of another machine, open a tunnel to it:\n"
            f"    {TUNNEL}"
        )
    elif isinstance(error, MismatchError):
        advice = "the addresses are --target / TAUSCOPE_TARGET_URL and --drafter-url / TAUSCOPE_DRAFTER_URL"
    return Finding("problem", f"{name} service at {url}: {error.message}", advice, error)


def _target(info: TargetInfo) -> Iterator[Finding]:
    model = info.model
    layers = (
        f"{model.num_layers} decoder layers, ids 0..{model.num_layers - 1} (tuple convention: 1..{model.num_layers})"
    )
    yield Finding("ok", f"target service {info.version}: {model.id}, {layers}, hidden {model.hidden_size}")
    if info.version != client_version():
        yield Finding("note", f"the target service is version {info.version}, this client {client_version()}")
    numerics = info.numerics
    kernels = f", linear attention by {numerics.linear_attention}" if numerics.linear_attention else ""
    yield Finding(
        "ok",
        f"numerics: {numerics.compute_dtype} on {numerics.device_name or numerics.device}, attention "
        f"{numerics.attention}{kernels}, torch {numerics.torch}, transformers {numerics.transformers}",
    )
    for test in info.self_tests:
        text = f"self-test {test.name}: {test.status.replace('_', ' ')}" + (f" ({test.detail})" if test.detail else "")
        if test.status == "failed":
            yield Finding("problem", text, "do not trust numbers of this service before this passes")
        else:
            yield Finding("ok" if test.status == "passed" else "note", text)
    for thing in info.mode_cannot:
        yield Finding("note", f"mode {info.mode} cannot: {thing}")


def _smoke(target: TargetClient, info: TargetInfo) -> Iterator[Finding]:
    layers = list(range(min(info.deepest_layer, info.model.num_layers - 1), -1, -1))[:2]
    ids = list(range(1, 1 + min(SMOKE_TOKENS, info.model.vocab_size - 1)))
    try:
        answer = target.hidden(HiddenRequest(token_ids=ids, layers=layers))
    except TauscopeError as error:
        yield Finding("problem", f"hidden states of {len(ids)} tokens: {error.message}", error=error)
        return
    states = None if answer.states is None else answer.states.astype(np.float32)
    expected = (len(layers), len(ids), info.model.hidden_size)
    if list(answer.planes) != layers or states is None or states.shape != expected:
        yield Finding("problem", f"asked for layers {layers} of {len(ids)} tokens, got planes {list(answer.planes)}")
    elif not np.isfinite(states).all() or (np.abs(states).max(axis=-1) == 0).any():
        yield Finding("problem", "hidden states hold rows that are zero or not finite")
    else:
        yield Finding("ok", f"hidden states of {len(ids)} tokens arrive: layers {layers}, finite, no row zero")


def _drafter(service: DrafterServiceInfo) -> Iterator[Finding]:
    yield Finding(
        "ok", f"drafter service {service.version}, reads hidden states from {service.target_url or 'nowhere'}"
    )
    if service.version != client_version():
        yield Finding("note", f"the drafter service is version {service.version}, this client {client_version()}")
    if not service.drafters:
        yield Finding(
            "problem", "no drafter is loaded", "start the service with --drafter NAME=PATH, or POST /drafters"
        )
    for card in service.drafters:
        yield Finding(
            "ok",
            f"drafter {card.name}: {card.family}, block {card.block_size} ({card.layout}, {card.drafts} drafts), reads "
            f"layers {card.taps}, sha256 {card.sha256[:12]}",
        )


def _pair(info: TargetInfo, service: DrafterServiceInfo) -> Iterator[Finding]:
    problems = pair_problems(info, service, service.drafters)
    for problem in problems:
        yield Finding("problem", problem, error=MismatchError(problem))
    for warning in pair_warnings(info, service.drafters):
        yield Finding("note", warning)
    if service.drafters and not problems:
        yield Finding("ok", "every drafter fits the target")
