"""Drafting under changed conditions: the states as changed, and a network rebuilt over the same weights.

Nothing here is kept: a network under conditions shares every tensor with the declared one and costs a rotary table, and
contexts under conditions never enter the cache.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tauscope_drafter.conditions import drafts_of
from tauscope_drafter.families.dflash import Backbone
from tauscope_drafter.families.family import Network
from tauscope_drafter.loading import Loaded, Place
from tauscope_drafter.network.norm import rms_norm
from tauscope_drafter.spec import BackboneSpec, DrafterSpec, RopeSpec, Window
from tauscope_wire.errors import ErrorCode, RequestError
from tauscope_wire.messages import DraftConditions

# Keeps a row of zeros finite when it is scaled to rms 1.
_RMS_EPS = 1e-12


def network_under(loaded: Loaded, conditions: DraftConditions) -> Network:
    """The drafter's network as it is under the conditions; the declared one where they concern the states only.

    Raises:
        RequestError: a family that they do not apply to.
    """
    spec = spec_under(loaded.spec, conditions)
    if spec == loaded.spec and not conditions.context_shift:
        return loaded.network
    network = loaded.rebuild(spec)
    if conditions.context_shift:
        if not isinstance(network, Backbone):
            raise RequestError(
                f"conditions.context_shift={conditions.context_shift}: family {spec.family} has no block that reads a "
                "context; leave it out",
                ErrorCode.NOT_SUPPORTED,
            )
        network.context_shift = conditions.context_shift
    return network


def spec_under(spec: DrafterSpec, conditions: DraftConditions) -> DrafterSpec:
    """The description with layout, rotary embedding and windows as they are under the conditions."""
    layout, size = conditions.layout or spec.layout, conditions.block_size or spec.block_size
    if (layout, size) != (spec.layout, spec.block_size):
        spec = replace(spec, layout=layout, block_size=size, drafts=drafts_of(layout, size))
    if spec.backbone is None:
        return spec
    rope = spec.backbone.rope
    if conditions.plain_rope:
        rope = RopeSpec(rope.theta, rope.dim)
    if conditions.rope_theta is not None:
        rope = replace(rope, theta=conditions.rope_theta)
    return replace(spec, backbone=replace(spec.backbone, rope=rope, windows=_windows(spec.backbone, conditions)))


def _windows(backbone: BackboneSpec, conditions: DraftConditions) -> tuple[Window, ...]:
    windows = backbone.windows
    if conditions.sliding_window is not None:
        size = conditions.sliding_window or None
        slides_somewhere = any(window.size is not None for window in windows)
        windows = tuple(
            replace(window, size=size) if window.size is not None or not slides_somewhere else window
            for window in windows
        )
    if conditions.causal is not None:
        windows = tuple(replace(window, causal=conditions.causal) for window in windows)
    return windows


def states_under(states: Tensor, conditions: DraftConditions, *, taps: tuple[int, ...], place: Place) -> Tensor:
    """A changed copy of the states (the same tensor where nothing changes them).

    Args:
        states: [P, T, Ht] in the compute dtype, planes in the order that is read.
        conditions: see `DraftConditions` for the order of changes.
        taps: canonical ids of the planes.
        place: has the target's final norm.

    Raises:
        RequestError: the target's final norm is asked for and not at hand.
    """
    if conditions.noise:
        states = states + _noise(states, conditions)
    if conditions.swap_taps:
        order = list(range(len(states)))
        for one, other in conditions.swap_taps:
            order[one], order[other] = order[other], order[one]
        states = states[order]
    if conditions.mean_taps or conditions.zero_taps:
        states = states.clone()
        for tap in conditions.mean_taps:
            states[tap] = states[tap].float().mean(0).to(states.dtype)
        for tap in conditions.zero_taps:
            states[tap] = 0
    if conditions.state_norm == "rms":
        states = (states.float() / _rms(states).clamp_min(_RMS_EPS)).to(states.dtype)
    elif conditions.state_norm == "final_norm":
        if place.final_norm is None:
            raise RequestError(
                "conditions.state_norm='final_norm': the target's final norm is not at hand; start the service with "
                "--target-model DIR",
                ErrorCode.NOT_SUPPORTED,
            )
        states = states.clone()
        deepest = taps.index(max(taps))
        weight = place.final_norm.to(states.device)
        states[deepest] = rms_norm(states[deepest].float(), weight.float(), place.norm_eps).to(states.dtype)
    return states


def _rms(states: Tensor) -> Tensor:
    return states.float().square().mean(-1, keepdim=True).sqrt()


def _noise(states: Tensor, conditions: DraftConditions) -> Tensor:
    """Gaussian noise like `states`, drawn on the host so that it is the same on every device.

    numpy fills an array in order: the rows of a shorter context are the first rows of a longer one.
    """
    planes, length, width = states.shape
    drawn = [
        np.random.default_rng((conditions.noise_seed, plane)).standard_normal((length, width), dtype=np.float32)
        for plane in range(planes)
    ]
    noise = torch.from_numpy(np.stack(drawn)).to(states.device)
    return (noise * (conditions.noise * _rms(states))).to(states.dtype)
