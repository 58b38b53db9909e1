"""Writes spill files until it is killed; prints each handle once it is written. Run by `test_spill`."""

import sys
from itertools import count
from pathlib import Path

import numpy as np

from tauscope_target.spill import SpillDirectory
from tauscope_target.stored import stored


def write_for_ever(path: Path) -> None:
    spill = SpillDirectory(path, max_bytes=1 << 30, ttl_s=1e9)
    states = np.zeros((1, 200, 256), np.float32)
    for number in count(1):
        ids = np.full(200, number, np.int32)
        entry = stored(
            planes=(1,), dtype="float32", token_ids=ids, start=0, states=states, logits=None, owner="", shared=False
        )
        handle = f"{number:048d}"
        spill.write(handle, entry)
        print(handle, flush=True)


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]))
