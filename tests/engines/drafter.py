"""The small DFlash drafter for SmolLM2 that is served and walked in these tests: `python -m engines.drafter`.

Trained on this machine's CPU in minutes by the recipe of the demo models (`deploy/demo/train`, "A drafter for a public
model"), whose network is no part of the services; kept under `.engines/`, out of git. It partly knows the answers to
eight prompts by heart and is of no other use.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from engines.layout import LOGS, MODELS, REPOSITORY, SMOLLM2_DRAFTER
from engines.prompts import FRESH, PROMPTS, messages
from engines.smollm2 import obtain

__all__ = ["train"]

SETTINGS: Final = (
    *("--block", "8", "--layers", "2", "--mlp", "1024", "--heads", "8", "--kv-heads", "4", "--head-dim", "64"),
    *("--taps", "1", "9", "17", "25"),
    *("--mask-id", "3"),  # a special token of SmolLM2 that no text contains
    *("--max-new-tokens", "96"),
    *("--steps", "140"),  # more, and it knows the answers so well that every round accepts all: nothing to compare
)


def train() -> Path:
    """Train it, unless that has been done; what a training that was cut has left is taken up.

    Returns:
        The folder: `config.json` and `model.safetensors` (float32, z-lab format), and the card of the run.

    Raises:
        SetUpError: the environment that converts the target cannot be built.
        subprocess.CalledProcessError: the training failed; its log is `.engines/logs/train-drafter.log`.
    """
    if (SMOLLM2_DRAFTER / "model.safetensors").exists():
        return SMOLLM2_DRAFTER
    target = obtain()
    LOGS.mkdir(parents=True, exist_ok=True)
    prompts = MODELS / "training-prompts.jsonl"
    lines = [
        {
            "id": name,
            "split": "fresh" if name in FRESH else "train",
            "messages": [message.model_dump() for message in messages(name)],
        }
        for name in PROMPTS
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (LOGS / "train-drafter.log").open("w") as log:
        subprocess.run(
            [
                *(sys.executable, "-m", "deploy.demo.train.public"),
                *("--target", target, "--out", SMOLLM2_DRAFTER, "--prompts", prompts, *SETTINGS),
            ],
            check=True,
            cwd=REPOSITORY,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    return SMOLLM2_DRAFTER


if __name__ == "__main__":
    sys.stdout.write(f"{train()}\n")
