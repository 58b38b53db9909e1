"""Which number of a run is its headline: tau along greedy text, expected tau along sampled text.

A draft that equals the token of a sampled text matches one sample of many; the chance of acceptance is what counts.
"""

from collections.abc import Mapping
from typing import Any

from tauscope_client.metrics import EXPECTATIONS

__all__ = ["headline_name", "is_sampled", "kind_of_text", "tau_label"]


def is_sampled(results: Mapping[str, Any]) -> bool:
    """Whether the references of a run were sampled."""
    return results.get("sampling") is not None


def headline_name(results: Mapping[str, Any]) -> str:
    """Name of the headline in `results.json`."""
    return EXPECTATIONS[0] if is_sampled(results) else "tau"


def tau_label(results: Mapping[str, Any]) -> str:
    """The headline as people read it."""
    return "expected tau" if is_sampled(results) else "tau"


def kind_of_text(results: Mapping[str, Any]) -> str:
    """How the answers were chosen, for titles."""
    sampling = results.get("sampling")
    return "greedy" if sampling is None else str(sampling["words"])
