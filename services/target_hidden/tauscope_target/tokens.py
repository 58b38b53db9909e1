"""The checkpoint's own tokenizer, so that a client needs none. Uses transformers, not torch."""

import inspect
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tauscope_wire.errors import CheckpointError, ErrorCode, RequestError
from tauscope_wire.messages import Message


class CheckpointTokens:
    """Tokenizer of a checkpoint folder.

    A fast tokenizer refuses concurrent use while one thread changes its padding state, so calls take turns; they take
    microseconds to milliseconds.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        own = inspect.signature(tokenizer.apply_chat_template).parameters
        self._reserved = {name for name, p in own.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_messages` can work."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, with the special tokens that the tokenizer adds by default."""
        with self._lock:
            return list(self._tokenizer(text)["input_ids"])

    def encode_messages(
        self, messages: Sequence[Message], *, template_kwargs: dict[str, Any], add_generation_prompt: bool
    ) -> list[int]:
        """Ids of the rendered chat template.

        Args:
            messages: the conversation.
            template_kwargs: variables of the template, `enable_thinking` for example.
            add_generation_prompt: end with the start of an assistant turn.

        Raises:
            RequestError: no template (`not_supported`); a variable that would change how the template is run, or a
                template that fails (`chat_template_failed`).
        """
        if not self.has_chat_template:
            raise RequestError(
                "the checkpoint has no chat template: send text or token_ids in place of messages",
                ErrorCode.NOT_SUPPORTED,
            )
        taken = sorted(self._reserved & set(template_kwargs))
        if taken:
            raise RequestError(
                f"template_kwargs.{taken[0]}: only variables of the chat template may be set here",
                ErrorCode.CHAT_TEMPLATE_FAILED,
            )
        turns = [{"role": m.role, "content": m.content} for m in messages]
        try:
            with self._lock:
                rendered = self._tokenizer.apply_chat_template(
                    turns,
                    tokenize=True,
                    return_dict=True,
                    add_generation_prompt=add_generation_prompt,
                    **template_kwargs,
                )
        except Exception as error:  # templates are programs of the checkpoint's author and raise anything
            raise RequestError(
                f"the chat template refused these messages ({type(error).__name__}); check roles, their order and "
                "template_kwargs",
                ErrorCode.CHAT_TEMPLATE_FAILED,
            ) from None
        return list(rendered["input_ids"])

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of the ids, with no clean-up of spaces."""
        with self._lock:
            return str(
                self._tokenizer.decode(
                    list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
                )
            )

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Text of each id by itself."""
        return [self.decode([token_id], skip_special_tokens=False) for token_id in token_ids]


def load_tokens(folder: Path) -> CheckpointTokens | None:
    """The tokenizer of a folder, or None when it has none (the service then takes ids only).

    Raises:
        CheckpointError: tokenizer files are there and cannot be used.
    """
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
    if not any((folder / name).is_file() for name in names):
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises a different type for every kind of damage
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be loaded ({type(error).__name__}); repair or remove its files",
            ErrorCode.CHECKPOINT_CORRUPT,
        ) from None
    return CheckpointTokens(tokenizer)
