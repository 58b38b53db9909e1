"""Everything that a checkpoint does not say, in one error: nobody likes to be told one missing number at a time.

A fact that is missing is stood in for, only to find out what else is missing; a description with a stand-in in it is
never returned.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tauscope_drafter.checkpoint.facts import Facts
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


def read_complete(facts: Facts, read: Callable[[Facts], DrafterSpec]) -> DrafterSpec:
    """Describe with `read`.

    Raises:
        CheckpointError: as `read`; where facts are missing (`config_incomplete`), all that can be found out are named,
            each with the option that gives it, and `details["options"]` lists those options.
    """
    lacking: list[CheckpointError] = []
    trial = facts
    while True:
        try:
            spec = read(trial)
        except CheckpointError as error:
            if error.code is not ErrorCode.CONFIG_INCOMPLETE or "give" not in error.details:
                if not lacking:
                    raise
                break  # caused by a stand-in, or to be told once the rest is there
            lacking.append(error)
            option = error.details["option"]
            value = _stand_in(option, facts)
            if value is None or getattr(trial.options, option) is not None:
                break
            trial = replace(trial, options=replace(trial.options, **{option: value}))
        else:
            if not lacking:
                return spec
            break
    if len(lacking) == 1:
        raise lacking[0]
    what = "; ".join(error.details["what"] for error in lacking)
    give = ", ".join(error.details["give"] for error in lacking)
    raise CheckpointError(
        f"{facts.origin}: not recorded with the weights, and cannot be read from them: {what}. Give {give} (the values "
        "are examples)",
        ErrorCode.CONFIG_INCOMPLETE,
        details={"options": [error.details["option"] for error in lacking]},
    )


def _stand_in(option: str, facts: Facts) -> Any:
    """A value that lets the reading go on, None for facts that have none."""
    if option != "taps":
        return _STAND_INS.get(option)
    shape = facts.shapes.get("fc.weight", (1, 1))
    width = facts.own.integer("target_hidden_size") or shape[0]
    return tuple(range(-1, max(1, shape[-1] // max(1, width)) - 1))
