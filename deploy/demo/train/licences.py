"""Which installed packages may be trained on, decided from what their own metadata says.

Evidence is read in this order, and the first that is present decides: ``License-Expression`` (SPDX), ``License ::``
classifiers, a short ``License`` field. Anything unclear is left out; the decision and its evidence go into the model
card.
"""

import re
from collections.abc import Iterable
from importlib import metadata
from typing import NamedTuple

PERMISSIVE_SPDX = frozenset(
    {
        "0bsd",
        "afl-3.0",
        "apache-2.0",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsl-1.0",
        "cc0-1.0",
        "cnri-python",
        "hpnd",
        "isc",
        "llvm-exception",
        "mit",
        "mit-0",
        "mit-cmu",
        "psf-2.0",
        "python-2.0",
        "unlicense",
        "zlib",
    }
)
"""Lower-case SPDX ids that allow use, change and redistribution on the condition of attribution at most."""

PERMISSIVE_CLASSIFIERS = (
    "apache software license",
    "bsd license",
    "historical permission notice and disclaimer (hpnd)",
    "isc license (iscl)",
    "mit license",
    "mit no attribution license (mit-0)",
    "python software foundation license",
    "the unlicense (unlicense)",
    "zlib/libpng license",
)

SHORT_NAMES = re.compile(
    r"(the )?(new |modified |simplified |3-clause |2-clause )?"
    r"(mit|apache|apache[ -]?(license)?,?( software license)?( version)? ?v?2(\.0)?|bsd([- ][23][- ]clause)?|"
    r"psf(-2\.0)?|python software foundation|isc|hpnd|zlib|unlicense)( license| licence)?",
    re.IGNORECASE,
)
MAX_SHORT_CHARS = 60
"""A longer ``License`` field is a licence text, not a name: not read as evidence."""


class Verdict(NamedTuple):
    """Decision about one distribution: whether it may be used, its licence as stated, and where that was read."""

    allowed: bool
    licence: str
    evidence: str


def spdx_is_permissive(expression: str) -> bool:
    """Whether an SPDX expression can be met with permissive terms only: every ``AND`` part, at least one ``OR`` part
    of each.
    """
    tokens = re.findall(r"\(|\)|[^\s()]+", expression)
    position = 0

    def parse_or() -> bool:
        nonlocal position
        value = parse_and()
        while position < len(tokens) and tokens[position].upper() == "OR":
            position += 1
            value = parse_and() or value
        return value

    def parse_and() -> bool:
        nonlocal position
        value = parse_term()
        while position < len(tokens) and tokens[position].upper() in {"AND", "WITH"}:
            position += 1
            value = parse_term() and value
        return value

    def parse_term() -> bool:
        nonlocal position
        if position >= len(tokens):
            return False
        token = tokens[position]
        position += 1
        if token == "(":
            value = parse_or()
            position += 1
            return value
        return token.lower() in PERMISSIVE_SPDX

    return parse_or() and position == len(tokens)


def judge(expression: str | None, classifiers: Iterable[str], licence: str | None) -> Verdict:
    """Decide from the three metadata fields of one distribution."""
    if expression:
        return Verdict(spdx_is_permissive(expression), expression, "License-Expression")
    stated = [c.split("::")[-1].strip() for c in classifiers if c.startswith("License ::")]
    names = [s for s in stated if s.lower() != "osi approved"]
    if names:
        return Verdict(all(n.lower() in PERMISSIVE_CLASSIFIERS for n in names), "; ".join(names), "classifier")
    if licence and len(licence) <= MAX_SHORT_CHARS:
        parts = [p for p in re.split(r"\s+(?:and|or|AND|OR)\s+|\s*[,/;]\s*(?=[A-Z])", licence.strip()) if p]
        allowed = spdx_is_permissive(licence) or all(SHORT_NAMES.fullmatch(p.strip()) for p in parts)
        return Verdict(allowed, licence.strip(), "License field")
    return Verdict(False, "not stated" if not licence else "free text", "none")


def judge_distribution(distribution: metadata.Distribution) -> Verdict:
    """`judge` on an installed distribution."""
    fields = distribution.metadata
    expression, licence = fields.get_all("License-Expression"), fields.get_all("License")
    return judge(
        expression[0] if expression else None, fields.get_all("Classifier") or [], licence[0] if licence else None
    )
