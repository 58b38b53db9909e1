"""The root logger, lent to a program that runs in the process of the tests."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_logs() -> Iterator[None]:
    """A program sets up the root logger; afterwards it is as before."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers = []  # else those of pytest would be closed
    try:
        yield
    finally:
        root.handlers, root.level = before, level
