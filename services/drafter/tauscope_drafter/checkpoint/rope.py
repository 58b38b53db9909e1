"""The rotary settings of a configuration, in their old and new spellings.

Nothing is defaulted: a wrong theta loads, runs, and silently loses acceptance.
"""

from collections.abc import Mapping
from typing import Any

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.spec import RopeSpec
from tauscope_wire.errors import CheckpointError, ErrorCode

_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # kind -> required, optional
    "default": ((), ()),
    "linear": (("factor",), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": (("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"), ()),
}
# Keys that select something else than a number of the formula.
_SELECTORS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
# Copied from targets into drafters' files; text positions are equal on all three axes, so they change nothing.
_WITHOUT_EFFECT = ("mrope_section", "mrope_interleaved")
_LAYER_TYPES = ("sliding_attention", "full_attention")


def read_rope(facts: Facts, head_dim: int, *, partial: bool = False) -> tuple[RopeSpec, tuple[str, ...]]:
    """The rotary embedding and warnings about it.

    Args:
        facts: of the checkpoint.
        head_dim: dimension of a head.
        partial: whether `partial_rotary_factor` applies (MTP heads); block drafters always rotate the whole head.

    Raises:
        CheckpointError: no theta, an unknown key or kind, or a number that is missing.
    """
    settings, origin = facts.network, facts.origin
    warnings: list[str] = []
    given = _merged(settings.find("rope_parameters"), settings.find("rope_scaling"), origin, warnings)
    theta = facts.options.rope_theta
    if theta is None:
        theta = settings.number("rope_theta")
        nested = given.get("rope_theta")
        if theta is not None and nested is not None and float(nested) != theta:
            raise CheckpointError(
                f"{origin}: rope_theta is {theta:g} at the top and {float(nested):g} in rope_parameters; give "
                "rope_theta=... to say which",
                ErrorCode.CHECKPOINT_AMBIGUOUS,
            )
        theta = theta if theta is not None else (None if nested is None else float(nested))
    if theta is None:
        raise missing("rope_theta (the base of the rotary embedding)", "rope_theta", "1e6", origin)
    kind = str(given.get("rope_type", given.get("type", "default")))
    if kind not in _KINDS:
        raise CheckpointError(
            f"{origin}: rope_type {kind!r} is not known; known are {', '.join(_KINDS)}",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    required, optional = _KINDS[kind]
    unknown = set(given) - set(_SELECTORS) - set(_WITHOUT_EFFECT) - set(required) - set(optional)
    if unknown:
        raise CheckpointError(
            f"{origin}: rope settings {sorted(unknown)} are not known for rope_type {kind!r}; ignoring them could "
            "change the drafts",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    parameters = {name: given[name] for name in (*required, *optional) if given.get(name) is not None}
    if lacking := [name for name in required if name not in parameters]:
        raise CheckpointError(f"{origin}: rope_type {kind!r} needs {', '.join(lacking)}", ErrorCode.CONFIG_INCOMPLETE)
    factor = float(given.get("partial_rotary_factor", settings.number("partial_rotary_factor") or 1.0))
    if not partial and factor != 1.0:
        raise CheckpointError(
            f"{origin}: partial_rotary_factor={factor:g}: drafters of this family rotate the whole head; the value "
            "looks copied from the target, remove it or correct it",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    if ineffective := [name for name in _WITHOUT_EFFECT if name in given]:
        warnings.append(f"{', '.join(ineffective)} ignored: positions of text are equal on all axes")
    dim = int(head_dim * factor) if partial else head_dim
    return RopeSpec(theta, dim, kind, parameters), tuple(warnings)  # type: ignore[arg-type]


def _merged(new: Any, old: Any, origin: str, warnings: list[str]) -> Mapping[str, Any]:
    """`rope_parameters` (transformers 5) or `rope_scaling` (4); both may be given when they agree."""
    merged: dict[str, Any] = {}
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{origin}: {name}={value!r} is not an object")
        content = value
        if nested := [t for t in _LAYER_TYPES if isinstance(value.get(t), Mapping)]:
            content = value[nested[0]]
            warnings.append(f"{name} differs by layer type; the entry of {nested[0]} is used for all layers")
        for key, item in content.items():
            if item is not None and merged.get(key, item) != item:
                raise CheckpointError(
                    f"{origin}: {key} is {merged[key]!r} in rope_parameters and {item!r} in rope_scaling",
                    ErrorCode.CHECKPOINT_AMBIGUOUS,
                )
            if item is not None:
                merged[key] = item
    if "type" in merged and "rope_type" in merged and merged["type"] != merged["rope_type"]:
        raise CheckpointError(
            f"{origin}: type is {merged['type']!r} and rope_type is {merged['rope_type']!r}",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    return merged
