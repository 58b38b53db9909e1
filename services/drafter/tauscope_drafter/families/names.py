"""Names of the families, without their code: what `/info` and `--help` may know before torch is loaded."""

from typing import Final

FAMILIES: Final = ("dflash",)
WITHOUT_WEIGHTS: Final = ("ngram", "oracle")
