"""Reads golden captures (`tauscope.golden/1`), as `tauscope-target golden` writes them on another machine.

A capture is a file from elsewhere: what is in it is checked before it is used. One prompt is in memory at a time.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from tauscope_wire.dtypes import NUMPY_DTYPES, WireDtype  # also teaches numpy the name bfloat16
from tauscope_wire.errors import RequestError
from tauscope_wire.layers import EMBEDDING
from tauscope_wire.messages import ModelInfo, Numerics

__all__ = ["GoldenFacts", "GoldenFile", "GoldenPrompt", "open_golden"]

SCHEMA: Final = "tauscope.golden/1"


class GoldenFacts(BaseModel):
    """What a capture says of itself.

    Attributes:
        model: the model that was captured.
        numerics: fingerprint of that machine.
        layers: canonical ids of the planes, in order.
        dtype: element type of the states.
        noise_floor: as that machine measured it at its start, or None.
        prompts: their number.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    model: ModelInfo
    numerics: Numerics
    layers: Annotated[list[Annotated[int, Field(ge=EMBEDDING)]], Field(min_length=1)]
    dtype: WireDtype
    noise_floor: dict[str, Any] | None = None
    prompts: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, eq=False)
class GoldenPrompt:
    """One captured prompt.

    Attributes:
        index: its number in the file.
        token_ids: int32 [T].
        states: [planes, T, hidden] of the capture's dtype.
        argmax_ids: int32 [T], or None where the head was not loaded.
    """

    index: int
    token_ids: npt.NDArray[np.int32]
    states: npt.NDArray[Any]
    argmax_ids: npt.NDArray[np.int32] | None


class GoldenFile:
    """An open capture."""

    def __init__(self, path: Path, file: Any, facts: GoldenFacts) -> None:
        self._path, self._file, self.facts = path, file, facts
        self._names = frozenset(file.keys())

    def prompt(self, index: int) -> GoldenPrompt:
        """Read prompt `index` (0-based).

        Raises:
            RequestError: tensors that are missing or do not fit the facts, or states that are not finite.
        """
        facts = self.facts
        ids = self._tensor(f"prompt.{index}.token_ids", "int32", (None,))
        if not len(ids) or ids.min() < 0 or ids.max() >= facts.model.vocab_size:
            raise self._broken(f"prompt.{index}.token_ids: empty, or ids outside of 0..{facts.model.vocab_size - 1}")
        shape = (len(facts.layers), len(ids), facts.model.hidden_size)
        states = self._tensor(f"prompt.{index}.states", facts.dtype, shape)
        for plane, layer in zip(states, facts.layers, strict=True):
            if not np.isfinite(plane).all():
                raise self._broken(f"prompt.{index}.states: layer {layer} holds values that are not finite")
        name = f"prompt.{index}.argmax_ids"
        argmax = self._tensor(name, "int32", (len(ids),)) if name in self._names else None
        return GoldenPrompt(index, ids, states, argmax)

    def prompts(self) -> Iterator[GoldenPrompt]:
        """All prompts, one after the other."""
        return (self.prompt(index) for index in range(self.facts.prompts))

    def _tensor(self, name: str, dtype: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        if name not in self._names:
            raise self._broken(f"no tensor {name}")
        array: npt.NDArray[Any] = self._file.get_tensor(name)
        is_shaped = array.ndim == len(shape) and all(
            b is None or a == b for a, b in zip(array.shape, shape, strict=True)
        )
        if array.dtype != NUMPY_DTYPES.get(dtype, np.dtype("<i4")) or not is_shaped:  # type: ignore[call-overload]
            expected = [size if size is not None else "T" for size in shape]
            raise self._broken(f"{name} is {array.dtype} {list(array.shape)}, expected {dtype} {expected}")
        return array

    def _broken(self, what: str) -> RequestError:
        return RequestError(f"{self._path}: {what}; capture it again with tauscope-target golden")


@contextmanager
def open_golden(path: Path) -> Iterator[GoldenFile]:
    """Open a capture.

    Raises:
        RequestError: no such file, or not a golden capture.
    """
    if not path.is_file():
        raise RequestError(f"{path}: no such file; write one with tauscope-target golden on the other machine")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("schema") != SCHEMA:
                raise RequestError(
                    f"{path}: schema {metadata.get('schema')!r}, expected {SCHEMA!r}; tauscope-target golden writes it"
                )
            yield GoldenFile(path, file, _facts(path, metadata.get("facts", "")))
    except SafetensorError as error:
        raise RequestError(f"{path}: not a complete safetensors file ({error})") from None


def _facts(path: Path, text: str) -> GoldenFacts:
    try:
        return GoldenFacts.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RequestError(f"{path}: facts.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError:
        raise RequestError(f"{path}: its facts are not JSON") from None
