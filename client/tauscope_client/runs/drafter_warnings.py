"""What services say about drafters, said once: the same warning about several drafters is one line."""

from collections.abc import Iterable

__all__ = ["grouped"]


def grouped(said: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each different text, with every drafter that it is about.

    Args:
        said: pairs of drafter and text, in the order they are to be reported; repetitions are left out.
    """
    about: dict[str, dict[str, None]] = {}
    for name, text in said:
        about.setdefault(text, {})[name] = None
    return [f"drafter{'s' * (len(names) > 1)} {_listed(list(names))}: {text}" for text, names in about.items()]


def _listed(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
