"""Tokenizer: byte-level BPE trained on the rendered pairs, saved so that transformers 4 and 5 both read it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deploy.demo.train.chat import CHAT_TEMPLATE, SPECIAL_TOKENS
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Pre-tokenization: words with the character before them, single digits, punctuation with the line break after it,
indentation.
"""
MAX_MODEL_TOKENS = 2048


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train the tokenizer; special tokens take the first ids, in the order of `SPECIAL_TOKENS`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((plain(text) for text in texts), trainer)
    return tokenizer


def plain(text: str) -> str:
    """The text with anything that looks like a special token broken up, for text that is not a rendered
    conversation.
    """
    return text.replace("<|", "< |")


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "additional_special_tokens": ["<|im_start|>"],
        "model_max_length": MAX_MODEL_TOKENS,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def encode_all(tokenizer: Tokenizer, texts: list[str], *, slice_size: int = 8192) -> list[list[int]]:
    """Token ids of many texts, in slices that bound the memory of the intermediate encodings."""
    out: list[list[int]] = []
    for start in range(0, len(texts), slice_size):
        out += [e.ids for e in tokenizer.encode_batch_fast(texts[start : start + slice_size])]
    return out
