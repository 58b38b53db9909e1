"""Text of others on a terminal: it can neither become markup nor move the cursor."""

import unicodedata

from rich.markup import escape

__all__ = ["shown"]

_KEPT = "\n\t"


def shown(text: str) -> str:
    """The text with control characters made visible and markup escaped.

    Engine messages, prompt tags and paths come from elsewhere; an escape sequence in them could rewrite what the
    terminal showed before.
    """
    return escape(
        "".join(
            f"\\x{ord(char):02x}" if unicodedata.category(char) == "Cc" and char not in _KEPT else char for char in text
        )
    )
