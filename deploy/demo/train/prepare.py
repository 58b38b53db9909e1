"""The data phase as a process of its own: builds the dataset and stores it, while the main process compiles kernels.

``python -m deploy.demo.train.prepare --work DIR --plan full``. Needs no torch.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from deploy.demo.train.corpus import collect
from deploy.demo.train.plans import PLANS
from deploy.demo.train.rows import Dataset, Encoded, Rows, build
from deploy.demo.train.settings import Plan
from tokenizers import Tokenizer

ROW_SETS = ("broad", "short", "validation")


def save_items(path: Path, items: list[Encoded]) -> None:
    """Store tokenized pairs as flat arrays and one list of texts."""
    texts = json.dumps([[i.task, i.user] for i in items]).encode()
    np.savez_compressed(
        path,
        prompts=np.concatenate([np.array(i.prompt, np.int16) for i in items] or [np.zeros(0, np.int16)]),
        prompt_sizes=np.array([len(i.prompt) for i in items], np.int32),
        answers=np.concatenate([np.array(i.answer, np.int16) for i in items] or [np.zeros(0, np.int16)]),
        answer_sizes=np.array([len(i.answer) for i in items], np.int32),
        texts=np.frombuffer(texts, np.uint8),
    )


def pieces(flat: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> list[list[int]]:
    """Cut a flat array back into lists."""
    ends = np.cumsum(sizes)
    return [flat[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


def load_items(path: Path) -> list[Encoded]:
    """Read what `save_items` wrote."""
    with np.load(path) as stored:
        texts = json.loads(stored["texts"].tobytes())
        prompts = pieces(stored["prompts"], stored["prompt_sizes"])
        answers = pieces(stored["answers"], stored["answer_sizes"])
    return [Encoded(task, user, p, a) for (task, user), p, a in zip(texts, prompts, answers, strict=True)]


def save_dataset(folder: Path, data: Dataset) -> None:
    """Write a dataset; ``record.json`` comes last and marks it as whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ROW_SETS:
        rows: Rows = getattr(data, name)
        np.save(folder / f"{name}-ids.npy", rows.ids)
        np.save(folder / f"{name}-weights.npy", rows.weights)
    save_items(folder / "train.npz", data.train)
    save_items(folder / "heldout.npz", data.heldout)
    data.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "record.json").write_text(json.dumps(data.record), encoding="utf-8")


def is_complete(folder: Path) -> bool:
    """Whether a stored dataset is whole."""
    return (folder / "record.json").exists()


def load_dataset(folder: Path) -> Dataset:
    """Read a dataset; row sets that were not kept are empty, which is enough for every phase after the target."""

    def load_rows(name: str) -> Rows:
        path = folder / f"{name}-ids.npy"
        if not path.exists():
            return Rows(np.zeros((0, 0), np.int16), np.zeros((0, 0), np.uint8))
        return Rows(np.load(path), np.load(folder / f"{name}-weights.npy"))

    record: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return Dataset(
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        broad=load_rows("broad"),
        short=load_rows("short"),
        validation=load_rows("validation"),
        train=load_items(folder / "train.npz"),
        heldout=load_items(folder / "heldout.npz"),
        record=record,
    )


def prepare(folder: Path, plan: Plan) -> None:
    """Build and store the dataset of a plan."""
    corpus = collect(workers=plan.workers, max_files=plan.max_files, packages=plan.packages)
    save_dataset(folder, build(corpus, plan))


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.train.prepare", description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--plan", choices=list(PLANS), default="full")
    options = parser.parse_args(arguments)
    prepare(options.work / "data", PLANS[options.plan]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
