"""Layer ids and the two conventions for them.

Canonical id i is the residual stream leaving decoder layer i (0-based), before any final norm; -1 is the embedding
output. Convention `output` is canonical (z-lab, SGLang DFLASH, SpecForge). Convention `tuple` counts as Hugging Face
`hidden_states`, vLLM and speculators do: 0 is the embedding output and k + 1 the output of layer k. Tuple id N of an
N-layer model is still the state before the final norm here, as in the engines and unlike Hugging Face.
"""

from collections.abc import Sequence
from typing import Final, Literal

from tauscope_wire.errors import ErrorCode, RequestError

Convention = Literal["output", "tuple"]

EMBEDDING: Final = -1
"""Canonical id of the embedding output."""

FINAL_NORM: Final = "final_norm"
"""Name of the plane that holds the last layer after the model's final norm."""

Plane = int | Literal["final_norm"]


def canonical_layers(layers: Sequence[int], convention: Convention, *, num_layers: int) -> list[int]:
    """Convert ids of either convention to canonical ids, keeping the order asked for.

    Args:
        layers: ids in `convention`.
        convention: `output` or `tuple`.
        num_layers: decoder layers N of the model.

    Returns:
        Canonical ids, each in -1..N-1, in the order of `layers`.

    Raises:
        RequestError: an id outside the model (`layer_out_of_range`) or asked twice (`duplicate_layer`).
    """
    shift = 0 if convention == "output" else 1
    low, high = EMBEDDING + shift, num_layers - 1 + shift
    seen: dict[int, int] = {}
    for index, layer in enumerate(layers):
        if not low <= layer <= high:
            embedding = f"{EMBEDDING + shift} is the embedding output"
            first = f"{shift}..{high}"
            raise RequestError(
                f"layers[{index}]={layer}: the model has {num_layers} decoder layers ({first} in the {convention!r} "
                f"convention; {embedding})",
                ErrorCode.LAYER_OUT_OF_RANGE,
                details={"index": index, "value": layer, "low": low, "high": high, "convention": convention},
            )
        if layer in seen:
            raise RequestError(
                f"layers[{index}]={layer}: already asked for at layers[{seen[layer]}]; ask for each layer once",
                ErrorCode.DUPLICATE_LAYER,
                details={"index": index, "value": layer, "first_index": seen[layer]},
            )
        seen[layer] = index
    return [layer - shift for layer in layers]
