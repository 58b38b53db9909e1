"""Names of the families, without their code: what `/info` and `--help` may know before torch is loaded."""

from typing import Final

FAMILIES: Final = ("dflash", "dflash2", "dspark", "domino", "eagle3", "peagle", "mtp", "ngram", "oracle")
WITHOUT_WEIGHTS: Final = ("ngram", "oracle")
