"""What an extraction was asked for, and the record of it that a resumed run must agree with."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tauscope_client.extract.layouts import Layout
from tauscope_client.extract.masks import Loss
from tauscope_wire.dtypes import WireDtype
from tauscope_wire.errors import ErrorCode, MismatchError, RequestError
from tauscope_wire.layers import FINAL_NORM, Convention, Plane, canonical_layers
from tauscope_wire.messages import TargetInfo

__all__ = ["EXTRACT_SCHEMA", "ExtractSettings", "check_same_record", "file_sha256", "record_of"]

EXTRACT_SCHEMA = "tauscope.extract/1"
_PLANE_BYTES: Mapping[WireDtype, int] = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class ExtractSettings:
    """What to extract, and how.

    Attributes:
        layers: ids in `convention`, in the order of the file's planes.
        final_norm: also the last layer after the final norm; only where the layout leaves it open.
        dtype: of the states.
        layout: of the files.
        loss: which tokens of a conversation count for the loss.
        template_kwargs: options of the chat template.
        max_length: longer texts are cut; None: refused where the service's limit is lower.
        concurrency: requests in work at a time.
        max_bytes: refuse to begin when the data set would be larger.
        deadline_s: of one request; None: the service's.
        mixed_numerics: whether services, or this run and an earlier one, may compute in different ways.
    """

    layers: Sequence[int]
    layout: Layout
    convention: Convention = "output"
    final_norm: bool = False
    dtype: WireDtype = "bfloat16"
    loss: Loss = "assistant"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_length: int | None = None
    concurrency: int = 4
    max_bytes: int | None = None
    deadline_s: float | None = None
    mixed_numerics: bool = False

    def taps(self, num_layers: int) -> tuple[Plane, ...]:
        """Planes that were asked for, canonical.

        Raises:
            RequestError: no layer, one outside the model, or a final norm that the layout fixes.
        """
        if self.final_norm and self.layout.is_for_training:
            raise RequestError(f"--final-norm: the layout {self.layout.name} says itself what its last plane is")
        if not self.layers and not self.final_norm:
            raise RequestError("--layers: name at least one layer")
        taps: list[Plane] = list(canonical_layers(self.layers, self.convention, num_layers=num_layers))
        return (*taps, FINAL_NORM) if self.final_norm else tuple(taps)

    def planes(self, num_layers: int) -> tuple[Plane, ...]:
        """Planes of a file, in order."""
        return self.layout.planes(self.taps(num_layers), num_layers)

    def plane_bytes(self, hidden_size: int) -> int:
        """Bytes of one token in one plane."""
        return hidden_size * _PLANE_BYTES[self.dtype]


def record_of(settings: ExtractSettings, texts: Path, info: TargetInfo) -> dict[str, Any]:
    """`extract.json`: everything that the content of the files depends on."""
    return {
        "schema": EXTRACT_SCHEMA,
        "texts": {"name": texts.name, "sha256": file_sha256(texts)},
        "layout": settings.layout.name,
        "requested": {"layers": list(settings.layers), "convention": settings.convention},
        "planes": list(settings.planes(info.model.num_layers)),
        "dtype": settings.dtype,
        "loss": settings.loss,
        "template_kwargs": dict(settings.template_kwargs),
        "max_length": settings.max_length,
        "model": info.model.model_dump(),
        "numerics": info.numerics.model_dump(),
    }


def check_same_record(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path, *, mixed_numerics: bool) -> None:
    """Refuse to go on with something else in the same folder.

    Raises:
        MismatchError: names what differs.
    """
    free = {"numerics"} if mixed_numerics else set()
    differing = [key for key in new if key not in free and old.get(key) != new[key]]
    if differing:
        shown = "; ".join(f"{key}: {_short(old.get(key))} there, {_short(new[key])} now" for key in differing)
        only_numerics = differing == ["numerics"]
        raise MismatchError(
            f"{folder} holds another extraction ({shown}); use another --out"
            + (", or allow both with --mixed-numerics" if only_numerics else ""),
            ErrorCode.NUMERICS_MISMATCH if only_numerics else ErrorCode.TARGET_MISMATCH,
        )


def file_sha256(path: Path) -> str:
    """Hash of a file, read in pieces.

    Raises:
        RequestError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror or error})") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
