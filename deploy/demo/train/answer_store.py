"""Answers on disk: flat arrays that a later run takes up."""

from pathlib import Path

import numpy as np
from deploy.demo.train.answers import Answer
from deploy.demo.train.prepare import pieces


def save_answers(path: Path, answers: list[Answer]) -> None:
    """Store answers as flat arrays."""
    np.savez_compressed(
        path,
        ids=np.concatenate([np.array(a.ids, np.int32) for a in answers]),
        sizes=np.array([len(a.ids) for a in answers], np.int32),
        prompts=np.array([a.prompt_tokens for a in answers], np.int32),
        ended=np.array([a.has_ended for a in answers]),
    )


def load_answers(path: Path) -> list[Answer]:
    """Read what `save_answers` wrote."""
    with np.load(path) as stored:
        found = zip(pieces(stored["ids"], stored["sizes"]), stored["prompts"], stored["ended"], strict=True)
        return [Answer(ids, int(prompt), bool(ended)) for ids, prompt, ended in found]
