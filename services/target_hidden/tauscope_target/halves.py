"""Runs a decoder layer in two halves, token mixer and MLP, so that the weights of one can leave before the other runs.

The first half is the layer itself, left at its second norm; the second is `x + mlp(norm(x))` with the layer's own
modules. Whether that is what a layer does is not taken from names: for one layer of each type, rows of the first pass
run both ways, and only where every bit agrees is the layer run in halves.
"""

from typing import Any

import torch
from torch import nn

from tauscope_target.anatomy import Anatomy
from tauscope_target.layer_parts import MlpParts, mlp_parts
from tauscope_wire.errors import ErrorCode, InternalError

JUDGED_TOKENS, JUDGED_ROWS = 80, 1024
"""What is run both ways: more tokens than the 64 that gated delta kernels work on at once, few rows in all."""


class MixerDone(Exception):  # noqa: N818 - not an error: it leaves a layer where its second half begins
    """Carries the residual stream between the halves of a layer."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _Stop(nn.Module):
    """Stands where the norm before the MLP is."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Leave the layer."""
        raise MixerDone(hidden)


class Halves:
    """Judges and runs the halves of a model's layers.

    Args:
        anatomy: the model, before its layers are wrapped.
    """

    def __init__(self, anatomy: Anatomy) -> None:
        self._parts = [mlp_parts([name for name, _ in layer.named_parameters()]) for layer in anatomy.layers]
        self._types = anatomy.layer_types
        self._verdicts: dict[str, bool] = {}
        self._stop = _Stop()

    def is_judged(self, index: int) -> bool:
        """Whether it is known if layers like this one have halves."""
        return self._parts[index] is None or self._types[index] in self._verdicts

    def has(self, index: int) -> bool:
        """Whether a layer can be run in halves."""
        return self._parts[index] is not None and self._verdicts.get(self._types[index], False)

    def judge(self, index: int, layer: nn.Module, hidden: torch.Tensor, kwargs: dict[str, Any]) -> None:
        """Run a layer, all of whose weights are present, both ways, and remember whether the bits agree.

        Args:
            index: of the layer.
            layer: the layer.
            hidden: [batch, rows, hidden].
            kwargs: the layer's keyword arguments for these rows.
        """
        whole = layer(hidden, **kwargs)
        agrees = False
        if isinstance(whole, torch.Tensor):  # what else a layer returns comes from its second half, or is lost
            try:
                agrees = torch.equal(self.run_mlp(index, layer, self.run_mixer(index, layer, hidden, kwargs)), whole)
            except InternalError:
                agrees = False
        self._verdicts[self._types[index]] = agrees

    def run_mixer(self, index: int, layer: nn.Module, hidden: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        """The first half: [batch, rows, hidden] to the residual stream that enters the second norm.

        Raises:
            InternalError: the layer ended without calling that norm.
        """
        names = self._names(index)
        norm = layer._modules[names.norm]
        layer._modules[names.norm] = self._stop
        try:
            layer(hidden, **kwargs)
        except MixerDone as done:
            return done.hidden
        finally:
            layer._modules[names.norm] = norm
        raise InternalError(f"layer {index} does not call its {names.norm}", ErrorCode.INTERNAL)

    def run_mlp(self, index: int, layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """The second half."""
        names = self._names(index)
        output: torch.Tensor = hidden + getattr(layer, names.mlp)(getattr(layer, names.norm)(hidden))
        return output

    def _names(self, index: int) -> MlpParts:
        names = self._parts[index]
        assert names is not None, "only layers with halves are run in halves"
        return names
