"""Quantiles of Student's t, so that small samples need no statistics library."""

from functools import lru_cache
from math import atan, sqrt

import numpy as np

__all__ = ["t_quantile"]

# Trapezoids of the density; the error of a quantile is below 1e-5.
_NUM_POINTS = 4001
# Bisection of a finite angle: 60 halvings exhaust float64.
_NUM_HALVINGS = 60


@lru_cache(maxsize=1024)
def t_quantile(probability: float, dof: int) -> float:
    """The t below which `probability` of Student's distribution with `dof` degrees of freedom lies.

    With t = sqrt(dof) tan(x) the density becomes proportional to cos(x)^(dof-1) on (-pi/2, pi/2), which is smooth and
    finite; its integral is inverted by bisection.

    Raises:
        ValueError: probability outside (0, 1), or dof below 1.
    """
    if not 0 < probability < 1 or dof < 1:
        raise ValueError(f"t_quantile({probability}, dof={dof}): the probability is within (0, 1), dof at least 1")
    if probability < 0.5:
        return -t_quantile(1 - probability, dof)

    def integral(angle: float) -> float:
        points = np.linspace(0.0, angle, _NUM_POINTS)
        density = np.cos(points) ** (dof - 1)
        return float((density.sum() - (density[0] + density[-1]) / 2) * angle / (_NUM_POINTS - 1))

    wanted = (probability - 0.5) * 2 * integral(atan(float("inf")))
    low, high = 0.0, atan(float("inf"))
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if integral(middle) < wanted else (low, middle)
    return sqrt(dof) * float(np.tan(low))
