"""What services say about drafters, said once: the same warning about several drafters is one line."""

from collections.abc import Iterable, Sequence

__all__ = ["grouped", "listed"]


def grouped(said: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each different text, with every drafter that it is about.

    Args:
        said: pairs of drafter and text, in the order they are to be reported; repetitions are left out.
    """
    about: dict[str, dict[str, None]] = {}
    for name, text in said:
        about.setdefault(text, {})[name] = None
    return [f"{listed(list(names))}: {text}" for text, names in about.items()]


def listed(names: Sequence[str]) -> str:
    """`drafter 'a'`, or `drafters 'a', 'b' and 'c'`."""
    quoted = [repr(name) for name in names]
    if len(quoted) == 1:
        return f"drafter {quoted[0]}"
    return f"drafters {', '.join(quoted[:-1])} and {quoted[-1]}"
