"""A quick measurement of this processor's matrix products."""

import time

import torch

_ROWS, _WIDTH = 512, 2048  # large enough that the product, and not its start, is measured
_REPEATS = 5


def cpu_flop_s() -> float:
    """Operations a second of float32 matrix products, with the threads that torch uses."""
    a, b = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, _WIDTH)
    torch.matmul(a, b)
    started = time.perf_counter()
    for _ in range(_REPEATS):
        torch.matmul(a, b)
    return 2.0 * _REPEATS * _ROWS * _WIDTH * _WIDTH / (time.perf_counter() - started)
