"""The small DFlash drafter for SmolLM2 that is served and walked in these tests: `python -m engines.drafter`.

Trained on this machine's CPU in minutes by the network of z-lab's released package, see `programs/train_drafter.py`;
kept under `.engines/`, out of git. It nearly knows the answers to eight prompts by heart and is of no other use.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from engines.environments import ENVIRONMENTS, interpreter, set_up
from engines.layout import LOGS, MODELS, PROGRAMS, SMOLLM2_DRAFTER
from engines.prompts import PROMPTS, TRAINED_ON
from engines.smollm2 import obtain

__all__ = ["train"]


def train() -> Path:
    """Train it, unless that has been done.

    Returns:
        The folder: `config.json` and `model.safetensors` (float32, z-lab format).

    Raises:
        SetUpError: the package's environment cannot be built.
        subprocess.CalledProcessError: the training failed; its log is `.engines/logs/train-drafter.log`.
    """
    if (SMOLLM2_DRAFTER / "model.safetensors").exists():
        return SMOLLM2_DRAFTER
    set_up(ENVIRONMENTS["dflash"])
    listing = MODELS / "training-prompts.json"
    target = obtain()
    listing.write_text(json.dumps([PROMPTS[name] for name in TRAINED_ON]))
    with (LOGS / "train-drafter.log").open("w") as log:
        subprocess.run(
            [
                *(interpreter(ENVIRONMENTS["dflash"]), PROGRAMS / "train_drafter.py"),
                *(target, SMOLLM2_DRAFTER, listing),
            ],
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    return SMOLLM2_DRAFTER


if __name__ == "__main__":
    sys.stdout.write(f"{train()}\n")
