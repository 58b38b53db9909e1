"""Text to ids and back with the model's own tokenizer, for tests that need no running target service."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from engines.prompts import messages

__all__ = ["LocalBridge"]


class LocalBridge:
    """What the target service's `/tokenize` and `/detokenize` do, in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: dict[str, list[int]] = {}  # texts that went either way, and their ids, for recordings

    @cached_property
    def tokenizer(self) -> Any:
        """Loaded when first needed."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._folder)

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, no template and no special tokens added."""
        ids = list(self.tokenizer.encode(text, add_special_tokens=False))
        self.seen[text] = ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens visible."""
        text = str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        self.seen[text] = list(ids)
        return text

    def prompt_ids(self, name: str, *, repeat: int = 1, **template_kwargs: object) -> list[int]:
        """The rendered prompt of `engines.prompts`; its text `repeat` times in a row, to make it long."""
        conversation = [message.model_dump() for message in messages(name, repeat=repeat)]
        rendered = self.tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=False, **template_kwargs
        )
        return list(self.tokenizer.encode(rendered, add_special_tokens=False))
