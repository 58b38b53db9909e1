"""Which parameters of a decoder layer belong to its token mixer and which to its MLP, judged by their names.

A layer of the usual build has four parts: a norm, a mixer, a norm, an MLP. Its MLP and the norm before it are then a
half of their own, used after everything else. Layers with more parts (four norms, experts beside the MLP) and those
that put norms elsewhere stay whole. Names promise nothing: `halves` runs both ways and compares.

An MLP of a few equal matrices travels matrix by matrix, so that the first of them can arrive while another layer's MLP
is still in use.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

Part = Literal["mixer", "mlp"]
Shapes = Mapping[str, tuple[int, ...]]
"""Of the parameters of a layer or a part of it, named inside the layer."""

MOST_MATRICES = 4
"""MLPs of more matrices than this are mixtures of experts."""
NORM_PAIRS = (("input_layernorm", "post_attention_layernorm"), ("ln_1", "ln_2"))
"""Norms before the mixer and before the MLP, by the names that architectures give them."""


class MlpParts(NamedTuple):
    """Names of a layer's norm before the MLP, and of the MLP."""

    norm: str
    mlp: str

    def owns(self, name: str) -> bool:
        """Whether a parameter, named inside its layer, belongs to the MLP's half."""
        return name.partition(".")[0] in self


def mlp_parts(names: Collection[str]) -> MlpParts | None:
    """The MLP's parts of a layer.

    Args:
        names: of the layer's parameters, inside the layer.

    Returns:
        Names of its norm and MLP, or None for a layer of another build.
    """
    children = {name.partition(".")[0] for name in names}
    for before_mixer, before_mlp in NORM_PAIRS:
        if len(children) == 4 and {before_mixer, before_mlp, "mlp"} <= children:
            return MlpParts(before_mlp, "mlp")
    return None


def mlps_of(layers: Sequence[Shapes]) -> Sequence[Shapes] | None:
    """Parameters of each layer's MLP half, by name and shape; None unless all layers have halves."""
    parts = [mlp_parts(layer) for layer in layers]
    mlps = [
        {name: shape for name, shape in layer.items() if part.owns(name)}
        for layer, part in zip(layers, parts, strict=True)
        if part is not None
    ]
    return mlps if len(mlps) == len(layers) else None


def equal_matrices(mlps: Sequence[Shapes]) -> int:
    """Matrices of each MLP, if all MLPs have as many, of one size, and few; else 0, and they travel whole.

    Only then can the matrices of different layers take turns in cells of one size.
    """
    found = {tuple(math.prod(shape) for shape in mlp.values() if len(shape) >= 2) for mlp in mlps}
    if len(found) != 1:
        return 0
    (counts,) = found
    return len(counts) if len(set(counts)) == 1 and len(counts) <= MOST_MATRICES else 0


def pieces_of(layers: Sequence[Shapes]) -> list[dict[Part | None, list[list[str]]]]:
    """How layers travel: names of each layer's parameters by half and piece, in the order of use.

    Vectors of an MLP travel with its first matrix. Layers without halves travel whole, under None.
    """
    mlps = mlps_of(layers)
    if mlps is None:
        return [{None: [list(layer)]} for layer in layers]
    is_cut = equal_matrices(mlps) > 1
    return [
        {
            "mixer": [[name for name in layer if name not in mlp]],
            "mlp": _matrix_by_matrix(mlp) if is_cut else [list(mlp)],
        }
        for layer, mlp in zip(layers, mlps, strict=True)
    ]


def _matrix_by_matrix(mlp: Shapes) -> list[list[str]]:
    vectors = [name for name, shape in mlp.items() if len(shape) < 2]
    first, *others = ([name] for name, shape in mlp.items() if len(shape) >= 2)
    return [vectors + first, *others]
