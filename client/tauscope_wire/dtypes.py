"""Tensor element types on the wire and their numpy equivalents (little-endian)."""

from typing import Any, Final, Literal

import ml_dtypes
import numpy as np

WireDtype = Literal["bfloat16", "float32"]

NUMPY_DTYPES: Final[dict[WireDtype, np.dtype[Any]]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("<f4"),
}


def itemsize(dtype: WireDtype) -> int:
    """Bytes of one element."""
    return NUMPY_DTYPES[dtype].itemsize
