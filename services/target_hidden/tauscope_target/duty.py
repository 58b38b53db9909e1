"""Limits the share of time in which this service uses the device.

Stream priorities do not reach into another process, and two processes that are both busy get half of a GPU each. So
being a good neighbour means pausing: after every layer, long enough that the share asked for is kept.
"""

import time
from collections.abc import Callable

import torch

SHARED_DUTY = 0.13
"""Share on a card that somebody else uses: while we run, a busy neighbour gets less than half of the device, so this
share should cost it less than a tenth of its time (measured on one H200: each product 5.8 % and 9.3 % later in two
runs, and 10.0 % at 0.15)."""


class Duty:
    """Pauses between layers.

    Args:
        share: of the time, above 0; 1 never pauses and never waits.
        sleep: waits for seconds; a seam for tests.
        clock: seconds.
    """

    def __init__(
        self,
        share: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.share = share
        self._sleep = sleep
        self._clock = clock
        self._began = 0.0

    def begin(self) -> None:
        """A layer starts."""
        if self.share < 1:
            self._began = self._clock()

    def end(self, device: torch.device) -> None:
        """A layer was put on the stream of `device`: wait for it, then pause in proportion."""
        if self.share >= 1:
            return
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        busy_s = self._clock() - self._began
        self._sleep(busy_s * (1 / self.share - 1))
