"""Everything that a checkpoint does not say, in one error: nobody likes to be told one missing number at a time.

A fact that is missing is stood in for, only to find out what else is missing. A description with a stand-in in it is
given to nobody but `inspect`, together with what has been stood in for.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.spec import DrafterSpec
from tauscope_wire.errors import CheckpointError, ErrorCode

_STAND_INS: Final[Mapping[str, Any]] = {
    "block_size": 4,
    "mask_token_id": 0,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "layer_types": ("sliding_attention",),  # what the message offers; the window is then missing, too
    "sliding_window": 1,
    "embedding_scale": 1.0,
}


class Lack(NamedTuple):
    """A fact that neither files nor options give.

    Attributes:
        option: field of `LoadOptions` that gives it.
        what: what it is, in words.
        give: the option with an example.
    """

    option: str
    what: str
    give: str


class Reading(NamedTuple):
    """A description, and the facts in it that are stand-ins; None where a fact has none."""

    spec: DrafterSpec | None
    lacking: tuple[Lack, ...]


def read_complete(facts: Facts, read: Callable[[Facts], DrafterSpec]) -> DrafterSpec:
    """Describe with `read`.

    Raises:
        CheckpointError: as `read`; where facts are missing (`config_incomplete`), all that can be found out are named,
            each with the option that gives it, and `details["options"]` lists those options.
    """
    spec, lacking = read_with_stand_ins(facts, read)
    if spec is not None and not lacking:
        return spec
    if len(lacking) == 1:
        raise missing(lacking[0].what, lacking[0].option, lacking[0].give.partition("=")[2], facts.origin)
    what = "; ".join(lack.what for lack in lacking)
    give = ", ".join(lack.give for lack in lacking)
    raise CheckpointError(
        f"{facts.origin}: not recorded with the weights, and cannot be read from them: {what}. Give {give} (the values "
        "are examples)",
        ErrorCode.CONFIG_INCOMPLETE,
        details={"options": [lack.option for lack in lacking]},
    )


def read_with_stand_ins(facts: Facts, read: Callable[[Facts], DrafterSpec]) -> Reading:
    """Describe with `read`, missing facts stood in for as long as that is possible.

    Raises:
        CheckpointError: as `read`, for anything but missing facts.
    """
    lacking: list[Lack] = []
    trial = facts
    while True:
        try:
            return Reading(read(trial), tuple(lacking))
        except CheckpointError as error:
            if error.code is not ErrorCode.CONFIG_INCOMPLETE or "give" not in error.details:
                if not lacking:
                    raise
                return Reading(None, tuple(lacking))  # caused by a stand-in, or to be told once the rest is there
            lack = Lack(error.details["option"], error.details["what"], error.details["give"])
            lacking.append(lack)
            value = _stand_in(lack.option, facts)
            if value is None or getattr(trial.options, lack.option) is not None:
                return Reading(None, tuple(lacking))
            trial = replace(trial, options=replace(trial.options, **{lack.option: value}))


def _stand_in(option: str, facts: Facts) -> Any:
    """A value that lets the reading go on, None for facts that have none."""
    if option != "taps":
        return _STAND_INS.get(option)
    shape = facts.shapes.get("fc.weight", (1, 1))
    width = facts.own.integer("target_hidden_size") or shape[0]
    return tuple(range(-1, max(1, shape[-1] // max(1, width)) - 1))
