"""Rows: tokenized pairs packed into rows of one width, with a loss weight per token.

Two sets are made. ``broad``: every function of the training files and windows of raw files, weight 1 everywhere, for
knowledge. ``short``: only pairs whose answer fits the length limit, weight on the answer, for answers that end. A
document that does not fit into the rest of a row starts a new one, so that most rows begin with a prompt, as
generation does.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from deploy.demo.train.chat import END_OF_TEXT, IM_START, Function, Pair, pairs_of, render
from deploy.demo.train.corpus import Corpus, digest_of, shape_of
from deploy.demo.train.settings import SEED, VOCAB_SIZE, Plan
from deploy.demo.train.tokenization import encode_all, plain, train_tokenizer
from tokenizers import Tokenizer

PROMPT_WEIGHT, ANSWER_WEIGHT = 1, 10
"""Loss weights in tenths: prompts keep a little, because they carry signatures and prose."""
MIN_ANSWER_TOKENS = 8
MIN_WINDOW_TOKENS = 96
RAW_SLICE = 128
MAX_RAW_SHARE = 0.4
"""Raw windows per row of pairs in the broad set."""
TOKENIZER_PAIRS, TOKENIZER_FILES, TOKENIZER_FILE_CHARS = 40_000, 1500, 8000
MIN_PIECE_TOKENS = 64
"""Smallest rest of a row that is worth filling with the beginning of a long document."""

Ids = npt.NDArray[np.int16]
Weights = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Encoded:
    """One tokenized pair: the task, what the user writes, and the ids of prompt and answer."""

    task: str
    user: str
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Rows:
    """Packed rows: ids [N, W] int16 and loss weights [N, W] uint8 (the weight of predicting that token), padded with
    end-of-text, 0.
    """

    ids: Ids
    weights: Weights


@dataclass(frozen=True)
class Dataset:
    """All that training needs from the corpus."""

    tokenizer: Tokenizer
    broad: Rows
    short: Rows
    validation: Rows
    train: list[Encoded]
    heldout: list[Encoded]
    record: dict[str, Any]


class Packer:
    """Fills rows of a fixed width document by document."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._ids: list[Ids] = []
        self._weights: list[Weights] = []
        self._used = width

    def __len__(self) -> int:
        """Rows so far."""
        return len(self._ids)

    def add(self, ids: list[int], prompt_tokens: int = 0, *, may_cut: bool) -> None:
        """Append one document whose first ``prompt_tokens`` have the prompt's weight.

        One that is wider than a row, or that may be cut, loses its end.
        """
        size = len(ids)
        free = self._width - self._used
        if size > free and not (may_cut and free >= MIN_PIECE_TOKENS):
            self._ids.append(np.full(self._width, END_OF_TEXT, np.int16))
            self._weights.append(np.zeros(self._width, np.uint8))
            self._used, free = 0, self._width
        size = min(size, free)
        start, end = self._used, self._used + size
        self._ids[-1][start:end] = ids[:size]
        self._weights[-1][start:end] = ANSWER_WEIGHT
        self._weights[-1][start : min(end, start + prompt_tokens)] = PROMPT_WEIGHT
        self._used = end

    def rows(self) -> Rows:
        """The rows so far, in a fixed random order."""
        order = np.random.default_rng(SEED).permutation(len(self._ids))
        return Rows(np.stack(self._ids)[order], np.stack(self._weights)[order])


def encode_pairs(tokenizer: Tokenizer, pairs: list[Pair]) -> list[Encoded]:
    """Tokenize whole conversations and cut each after its last role line: no merge crosses a line break there."""
    role_tokens = 1 + len(tokenizer.encode("assistant\n").ids)
    out = []
    for pair, ids in zip(pairs, encode_all(tokenizer, [render(p.user, p.answer) for p in pairs]), strict=True):
        cut = len(ids) - 1 - ids[::-1].index(IM_START) + role_tokens
        out.append(Encoded(pair.task, pair.user, ids[:cut], ids[cut:]))
    return out


def is_short(item: Encoded, plan: Plan) -> bool:
    """Whether a pair belongs to the short set; the answer's two end tokens are not counted."""
    return (
        len(item.prompt) <= plan.max_prompt_tokens
        and MIN_ANSWER_TOKENS <= len(item.answer) - 2 <= plan.max_answer_tokens
        and len(item.prompt) + len(item.answer) <= plan.row_tokens
    )


def pack_answers(items: Iterable[tuple[list[int], list[int]]], width: int) -> Rows:
    """Pack (prompt, answer) ids with the weights of the short set."""
    packer = Packer(width)
    for prompt, answer in items:
        packer.add(prompt + answer, len(prompt), may_cut=False)
    return packer.rows()


def validation_rows(items: list[Encoded], width: int) -> Rows:
    """One pair per row, weight on the answer only."""
    ids = np.full((len(items), width), END_OF_TEXT, np.int16)
    weights = np.zeros((len(items), width), np.uint8)
    for row, item in enumerate(items):
        start, end = len(item.prompt), len(item.prompt) + len(item.answer)
        ids[row, :end] = item.prompt + item.answer
        weights[row, start:end] = 1
    return Rows(ids, weights)


def all_pairs(functions: list[Function]) -> list[Pair]:
    """Pairs of all functions in a fixed random order."""
    pairs = [pair for f in functions for pair in pairs_of(f, digest_of(shape_of(f.body)))]
    random.Random(SEED).shuffle(pairs)
    return pairs


def build(corpus: Corpus, plan: Plan, *, max_validation: int = 1024) -> Dataset:
    """Train the tokenizer, tokenize and pack."""
    train, heldout = all_pairs(corpus.train), all_pairs(corpus.heldout)
    raw = list(corpus.raw)
    random.Random(SEED).shuffle(raw)
    sample = [p.user + "\n" + p.answer for p in train[:TOKENIZER_PAIRS]]
    sample += [text[:TOKENIZER_FILE_CHARS] for text in raw[:TOKENIZER_FILES]]
    tokenizer = train_tokenizer(sample, vocab_size=VOCAB_SIZE)
    train_encoded, heldout_encoded = encode_pairs(tokenizer, train), encode_pairs(tokenizer, heldout)

    broad = Packer(plan.row_tokens)
    for item in train_encoded:
        broad.add(item.prompt + item.answer, may_cut=True)
    num_raw, max_raw = 0, int(MAX_RAW_SHARE * len(broad))
    for start in range(0, len(raw), RAW_SLICE):
        for ids in encode_all(tokenizer, [plain(text) for text in raw[start : start + RAW_SLICE]]):
            for at in range(0, len(ids) - MIN_WINDOW_TOKENS, plan.row_tokens):
                broad.add(ids[at : at + plan.row_tokens], may_cut=False)
                num_raw += 1
        if num_raw >= max_raw:
            break
    short_train = [item for item in train_encoded if is_short(item, plan)]
    short_heldout = [item for item in heldout_encoded if is_short(item, plan)]
    broad_rows = broad.rows()
    short_rows = pack_answers(((i.prompt, i.answer) for i in short_train), plan.row_tokens)
    record = {
        "files": corpus.num_files,
        "functions": len(corpus.train) + len(corpus.heldout),
        "pairs": len(train_encoded),
        "pairs_heldout": len(heldout_encoded),
        "short_pairs": len(short_train),
        "short_pairs_heldout": len(short_heldout),
        "broad_rows": len(broad_rows.ids),
        "broad_tokens": int(np.count_nonzero(broad_rows.weights)),
        "raw_windows": num_raw,
        "short_rows": len(short_rows.ids),
        "short_tokens": int(np.count_nonzero(short_rows.weights)),
        "packages": corpus.packages,
        "excluded_packages": corpus.excluded,
    }
    validation = validation_rows(short_heldout[-max_validation:], plan.row_tokens)
    return Dataset(tokenizer, broad_rows, short_rows, validation, short_train, short_heldout, record)
