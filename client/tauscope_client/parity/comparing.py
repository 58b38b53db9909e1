"""Asks the service for what a capture holds, and compares."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tauscope_client.pairing import can_give_logits
from tauscope_client.parity.causes import Cause, fingerprint_differences, likely_causes
from tauscope_client.parity.differences import PlaneDifference
from tauscope_client.parity.golden import GoldenFacts, GoldenFile, GoldenPrompt
from tauscope_client.parity.thresholds import FLOOR_MULTIPLE, Thresholds, thresholds_for
from tauscope_client.target import TargetClient
from tauscope_wire.dtypes import WireDtype, itemsize
from tauscope_wire.errors import ErrorCode, MismatchError
from tauscope_wire.layers import EMBEDDING, Plane
from tauscope_wire.messages import HiddenRequest, LogitsRequest, TargetInfo

__all__ = ["Parity", "compare_golden"]

ANSWER_BYTES: Final = 256 << 20
"""Of one answer: a few layers of a large model at a time, so that a laptop holds the comparison."""

DIAGNOSED_ROWS: Final = 128
"""Rows that are looked at for the cause; more would show nothing new."""


@dataclass(frozen=True)
class Parity:
    """The comparison.

    Attributes:
        planes: differences, in the order of the capture.
        thresholds: what they are judged by.
        num_prompts: compared.
        num_flips: positions whose argmax differs, of `num_positions`; None without one on either side.
        num_positions: compared.
        skipped: layers of the capture that the service did not load.
        causes: likely causes, none when everything is within its threshold.
        notes: differences of the fingerprints that stayed below the thresholds.
    """

    planes: Sequence[PlaneDifference]
    thresholds: Thresholds
    num_prompts: int
    num_flips: int | None
    num_positions: int
    skipped: Sequence[int]
    causes: Sequence[Cause]
    notes: Sequence[Cause]

    @property
    def failing(self) -> list[int]:
        """Planes over their threshold."""
        return failing_planes(self.planes, self.thresholds)

    @property
    def has_flipped(self) -> bool:
        """Whether the argmax differs at more positions than near-ties explain."""
        return self.num_flips is not None and self.num_flips > self.thresholds.flips * self.num_positions

    @property
    def is_same(self) -> bool:
        """The verdict."""
        return not self.failing and not self.has_flipped

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        bounds = self.thresholds
        return {
            "schema": "tauscope.parity/1",
            "is_same": self.is_same,
            "planes": [
                asdict(plane)
                | {"relative_error": plane.relative_error, "threshold": bounds.by_plane[plane.plane]}
                | {"is_same": plane.worst <= bounds.by_plane[plane.plane]}
                for plane in self.planes
            ],
            "floor": {"source": bounds.source, "multiple": bounds.multiple, "rounding": bounds.rounding},
            "num_prompts": self.num_prompts,
            "num_positions": self.num_positions,
            "num_flips": self.num_flips,
            "skipped_layers": list(self.skipped),
            "causes": [asdict(cause) for cause in self.causes],
            "notes": [asdict(note) for note in self.notes],
        }


def failing_planes(planes: Sequence[PlaneDifference], thresholds: Thresholds) -> list[int]:
    """Planes whose worst row is over the threshold (or not a number)."""
    return [plane.plane for plane in planes if not plane.worst <= thresholds.by_plane[plane.plane]]


def compare_golden(golden: GoldenFile, target: TargetClient, *, multiple: float = FLOOR_MULTIPLE) -> Parity:
    """Compare a capture with the running service.

    Args:
        golden: an open capture.
        target: the service.
        multiple: thresholds as multiples of the noise floor.

    Raises:
        MismatchError: another model shape; the service holds none of the captured layers.
        RequestError: a broken capture.
        TauscopeError: what the service answered.
    """
    facts, info = golden.facts, target.info()
    _check_shapes(facts, info)
    kept = [layer for layer in facts.layers if layer <= info.deepest_layer]
    if not kept:
        raise MismatchError(
            f"the capture holds layers {facts.layers}, the service loaded -1..{info.deepest_layer}; capture others "
            "with --layers, or start the service with a deeper --deepest-layer",
            ErrorCode.TARGET_MISMATCH,
        )
    dtype: WireDtype = "float32" if "float32" in info.dtypes else "bfloat16"
    thresholds = thresholds_for(
        kept,
        service=info.noise_floor,
        golden=facts.noise_floor,
        computed_in=dtype,
        num_rounded=(dtype == "bfloat16") + (facts.dtype == "bfloat16"),
        multiple=multiple,
    )
    differences = {layer: PlaneDifference(layer) for layer in kept}
    num_flips, num_positions = None, 0
    for prompt in golden.prompts():
        for layer, states in _states(target, info, prompt.token_ids, kept, dtype):
            differences[int(layer)].add(states, prompt.states[facts.layers.index(int(layer))], prompt.index)
        num_positions += len(prompt.token_ids)
        if prompt.argmax_ids is not None and can_give_logits(info):
            num_flips = (num_flips or 0) + _flips(target, prompt, kept[0])
    planes = list(differences.values())
    failing = failing_planes(planes, thresholds)
    causes: list[Cause] = []
    if failing:
        worst = max((differences[plane] for plane in failing), key=lambda plane: plane.worst)
        causes = _diagnose(
            golden.prompt(worst.worst_prompt), target, info, facts=facts, kept=kept, failing=failing, dtype=dtype
        )
    elif num_flips is not None and num_flips > thresholds.flips * num_positions:
        text = "the captured layers agree and the argmax does not: another head, or other layers above the captured"
        causes = [Cause("weights", text, True)]
    notes = [] if failing else fingerprint_differences(facts.numerics, info.numerics)
    skipped = [layer for layer in facts.layers if layer not in differences]
    return Parity(planes, thresholds, facts.prompts, num_flips, num_positions, skipped, causes, notes)


def _check_shapes(facts: GoldenFacts, info: TargetInfo) -> None:
    for name in ("hidden_size", "num_layers", "vocab_size"):
        there, here = getattr(facts.model, name), getattr(info.model, name)
        if there != here:
            raise MismatchError(
                f"the capture is of {facts.model.id} with {name} {there}, the service has {info.model.id} with {here}: "
                "another model; start the service with the captured one",
                ErrorCode.TARGET_MISMATCH,
            )


def _states(
    target: TargetClient,
    info: TargetInfo,
    token_ids: npt.NDArray[np.int32],
    layers: Sequence[int],
    dtype: WireDtype,
    *,
    num_rows: int | None = None,
    final_norm: bool = False,
) -> Iterator[tuple[Plane, npt.NDArray[Any]]]:
    """Planes of the service, [rows, hidden], a few layers per request."""
    rows = len(token_ids) if num_rows is None else num_rows
    plane_bytes = rows * info.model.hidden_size * itemsize(dtype)
    bound = min(ANSWER_BYTES, info.limits.max_answer_bytes or ANSWER_BYTES) // plane_bytes
    step = max(1, min(bound, info.limits.max_layers or len(layers)) - 1)
    for first in range(0, len(layers), step):
        request = HiddenRequest(
            token_ids=token_ids.tolist(),
            layers=list(layers[first : first + step]),
            final_norm=final_norm and first == 0,
            positions=(0, rows),
            dtype=dtype,
        )
        answer = target.hidden(request)
        for plane in answer.planes:
            yield plane, answer.plane(plane)


def _flips(target: TargetClient, prompt: GoldenPrompt, layer: int) -> int:
    """Positions whose argmax differs; an answer holds at least one layer."""
    logits = LogitsRequest(top_k=0, next_token=False)
    request = HiddenRequest(token_ids=prompt.token_ids.tolist(), layers=[layer], logits=logits)
    answer = target.hidden(request)
    assert answer.logits is not None and prompt.argmax_ids is not None  # the reader compares with the request
    return int(np.sum(answer.logits.argmax_ids != prompt.argmax_ids))


def _diagnose(
    prompt: GoldenPrompt,
    target: TargetClient,
    info: TargetInfo,
    *,
    facts: GoldenFacts,
    kept: Sequence[int],
    failing: Sequence[int],
    dtype: WireDtype,
) -> list[Cause]:
    """Fetch the neighbours of all planes of one prompt, and look for the cause."""
    rows = min(len(prompt.token_ids), DIAGNOSED_ROWS)
    last = info.model.num_layers - 1
    near = {layer + shift for layer in kept for shift in (-1, 0, 1)}
    wanted = sorted(layer for layer in near if EMBEDDING <= layer <= info.deepest_layer)
    with_norm = last in failing and can_give_logits(info)
    service: Mapping[Plane, npt.NDArray[Any]] = dict(
        _states(target, info, prompt.token_ids, wanted, dtype, num_rows=rows, final_norm=with_norm)
    )
    golden: dict[Plane, npt.NDArray[Any]] = {layer: prompt.states[facts.layers.index(layer)][:rows] for layer in kept}
    return likely_causes(golden, service, failing, facts=facts, model=info.model, numerics=info.numerics)
