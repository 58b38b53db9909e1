"""What a user may say about a checkpoint that its files do not say, or say wrongly."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tauscope_wire.errors import CheckpointError, ErrorCode, RequestError


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of one drafter; None leaves the word to the files.

    Attributes:
        family: a module of `families`.
        block_size: B, the anchor slot included.
        taps: layer ids in `convention`, in the order of the columns of `fc`.
        convention: `output` or `tuple` (see `tauscope_wire.layers`).
        mask_token_id: row of the embedding that fills the block.
        rope_theta: base of the rotary embedding.
        layout: `fill-in` or `anchor-first`.
        rms_norm_eps, sliding_window, layer_types, causal, embedding_scale: as in a configuration.
        config: path of a configuration that does not lie beside the weights.
        mtp_hidden: for MTP heads, whether the target's final norm is applied to the state (`post`) or not (`pre`).
        norm_before_residual: for EAGLE-3, whether the residual is the normed state.
        noise, seed: for the oracle.
        max_ngram, min_ngram: for prompt lookup.
    """

    family: str | None = None
    block_size: int | None = None
    taps: tuple[int, ...] | None = None
    convention: Literal["output", "tuple"] = "output"
    mask_token_id: int | None = None
    rope_theta: float | None = None
    layout: Literal["fill-in", "anchor-first"] | None = None
    rms_norm_eps: float | None = None
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    causal: bool | None = None
    embedding_scale: float | None = None
    config: str | None = None
    mtp_hidden: Literal["pre", "post"] | None = None
    norm_before_residual: bool | None = None
    noise: float | None = None
    seed: int | None = None
    max_ngram: int | None = None
    min_ngram: int | None = None

    def canonical_taps(self) -> tuple[int, ...] | None:
        """Taps as canonical ids."""
        if self.taps is None or self.convention == "output":
            return self.taps
        return tuple(t - 1 for t in self.taps)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(":"))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(":"))


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(" or ".join(allowed))
        return text

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "family": str,
    "block_size": int,
    "taps": _integers,
    "convention": _choice("output", "tuple"),
    "mask_token_id": int,
    "rope_theta": float,
    "layout": _choice("fill-in", "anchor-first"),
    "rms_norm_eps": float,
    "sliding_window": int,
    "layer_types": _words,
    "causal": _switch,
    "embedding_scale": float,
    "config": str,
    "mtp_hidden": _choice("pre", "post"),
    "norm_before_residual": _switch,
    "noise": float,
    "seed": int,
    "max_ngram": int,
    "min_ngram": int,
}


def parse_drafter(text: str) -> tuple[str, str, LoadOptions]:
    """`NAME=PATH[,key=value...]` of the command line; lists are written with colons, `taps=1:16:31`.

    Returns:
        Name, path, options.

    Raises:
        RequestError: names the part that is wrong and what would be right.
    """
    head, *parts = text.split(",")
    name, equals, path = head.partition("=")
    if not (name and equals and path):
        raise RequestError(f"drafter {text!r}: write NAME=PATH[,block_size=16,taps=1:16:31,...]")
    options = LoadOptions()
    for part in parts:
        key, _, value = part.partition("=")
        if key not in _PARSERS:
            raise RequestError(
                f"drafter {name!r}: no option {key!r}; there are {', '.join(f.name for f in fields(LoadOptions))}"
            )
        try:
            options = replace(options, **{key: _PARSERS[key](value)})
        except ValueError as error:
            raise RequestError(f"drafter {name!r}: {key}={value!r} is not right ({error})") from error
    return name, path, options


def missing(what: str, option: str, example: str, origin: str) -> CheckpointError:
    """The error for a number that neither files nor options give."""
    return CheckpointError(
        f"{origin}: {what} is not recorded with the weights and cannot be read from them; give {option}={example}",
        ErrorCode.CONFIG_INCOMPLETE,
        details={"option": option, "what": what, "give": f"{option}={example}"},
    )
