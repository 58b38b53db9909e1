"""Runs independent pieces of work in a few threads; the first fatal error stops the rest."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["run_all"]

T = TypeVar("T")


def run_all(work: Callable[[T], None], items: Sequence[T], *, concurrency: int) -> None:
    """Call `work` for every item, at most `concurrency` at a time, in order when it is 1.

    Whatever a call raises ends the run: calls in progress are waited for, the others never start, and the error is
    raised. An interrupt does the same.
    """
    if concurrency <= 1:
        for item in items:
            work(item)
        return
    queue = iter(items)
    with ThreadPoolExecutor(max_workers=concurrency) as pool:
        running: set[Future[None]] = set()
        for item in queue:
            running.add(pool.submit(work, item))
            if len(running) == concurrency:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        for future in running:
            future.result()
