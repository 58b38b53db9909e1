"""Which parameters of a decoder layer belong to its token mixer and which to its MLP, judged by their names.

A layer of the usual build has four parts: a norm, a mixer, a norm, an MLP. Its MLP and the norm before it are then a
piece of their own, used after everything else. Layers with more parts (four norms, experts beside the MLP) and those
that put norms elsewhere stay whole. Names promise nothing: `halves` runs both ways and compares.

An MLP travels matrix by matrix, so that the first of them can arrive while another layer's MLP is still in use.
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

Part = Literal["mixer", "mlp"]

NORM_PAIRS = (("input_layernorm", "post_attention_layernorm"), ("ln_1", "ln_2"))
"""Norms before the mixer and before the MLP, by the names that architectures give them."""


class MlpParts(NamedTuple):
    """Names of a layer's norm before the MLP, and of the MLP."""

    norm: str
    mlp: str

    def owns(self, name: str) -> bool:
        """Whether a parameter, named inside its layer, belongs to the MLP's piece."""
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


def pieces_of(shapes: Mapping[str, tuple[int, ...]]) -> list[list[str]]:
    """Names of an MLP's parameters as they travel: each matrix alone, the vectors with the first one.

    Args:
        shapes: of the parameters, in any order.
    """
    vectors = [name for name, shape in shapes.items() if len(shape) < 2]
    pieces = [[name] for name, shape in shapes.items() if len(shape) >= 2]
    return [vectors + pieces[0], *pieces[1:]] if pieces else [vectors]
