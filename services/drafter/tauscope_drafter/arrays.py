"""Hidden states from numpy to torch, and the check that they can be right."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tauscope_wire.errors import ErrorCode, RequestError


def to_torch(states: npt.NDArray[Any]) -> Tensor:
    """A tensor over the same memory where numpy allows it; states in a mapped file stay there."""
    if not states.flags.writeable:
        states = states.copy()
    if states.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(states.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(states)


def checked(states: Tensor) -> Tensor:
    """The states, if every row is finite and not all zero.

    Raises:
        RequestError: names plane and position of the first bad row.
    """
    peak = states.abs().amax(-1)
    for bad, code, what in (
        (~torch.isfinite(peak), ErrorCode.NON_FINITE_STATES, "holds NaN or infinity"),
        (peak == 0, ErrorCode.ZERO_STATES, "is all zero"),
    ):
        if bool(bad.any()):
            plane, position = (int(i) for i in bad.nonzero()[0])
            raise RequestError(f"hidden state of plane {plane} at position {position} {what}", code)
    return states
