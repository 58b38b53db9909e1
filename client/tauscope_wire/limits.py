"""Bounds of the reader: what an answer may make it allocate, whatever it declares."""

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_LIMITS", "ReadLimits"]


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Limits of one answer.

    Attributes:
        max_head_bytes: everything but the payload bins, over the whole body; 4 MiB hold 30,000 chunks.
        max_string_bytes: one string or small bin of the head.
        max_items: entries of one container.
        max_depth: containers within containers.
        max_tokens: length of the sequence.
        max_tensor_bytes: hidden states or drafts together; 128k tokens of five 5120-wide BF16 planes are 6.7 GB.
    """

    max_head_bytes: int = 4 << 20
    max_string_bytes: int = 64 << 10
    max_items: int = 1 << 16
    max_depth: int = 8
    max_tokens: int = 1 << 24
    max_tensor_bytes: int = 16 << 30


DEFAULT_LIMITS: Final = ReadLimits()
