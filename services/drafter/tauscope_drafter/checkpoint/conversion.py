"""Any supported checkpoint to weights only: safetensors under canonical names, with a z-lab style configuration."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tauscope_drafter.checkpoint.blocks import UNDECIDED_LAYOUT
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.checkpoint.reading import Description, describe
from tauscope_drafter.checkpoint.weights import WeightsHash, read_aside, read_tensors
from tauscope_drafter.checkpoint.writing import Progress, write_safetensors
from tauscope_drafter.checkpoint.zlab_config import zlab_config
from tauscope_wire.errors import CheckpointError, ErrorCode, RequestError

_TABLES = ("embed_tokens.weight", "lm_head.weight")
_MAPS = ("d2t", "t2d")
_HASH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was done, as written to `conversion.json`."""

    source: str
    source_sha256: dict[str, str]
    output_sha256: str
    weights_sha256: str
    family: str
    format: str
    tensors: int
    bytes_in: int
    bytes_out: int
    left_out: list[str]
    warnings: list[str]


def convert(
    source: Path,
    out: Path,
    options: LoadOptions,
    *,
    shared: bool = True,
    dtype: torch.dtype | None = None,
    start: Callable[[str, int], Progress] = lambda what, total: lambda count: None,
) -> Conversion:
    """Convert a checkpoint.

    Args:
        source: file or folder.
        out: folder to make; must not exist yet or be empty.
        options: what the files do not say.
        shared: keep the checkpoint's own embedding and head.
        dtype: of the tensors written; None keeps that of each.
        start: called with a name and a number of bytes when a long step begins; gives what is told about progress.

    Raises:
        CheckpointError: the source cannot be used, or its layout is not known.
        RequestError: `out` is in use.
    """
    if out.exists() and any(out.iterdir()):
        raise RequestError(f"{out} exists and is not empty; choose another folder")
    description = describe(source, options)
    if description.file is None:
        raise CheckpointError("a drafter without weights cannot be converted", ErrorCode.CHECKPOINT_UNSUPPORTED)
    description.check()
    if UNDECIDED_LAYOUT in description.spec.extras:
        raise CheckpointError(
            f"{source}: the layout is not recorded ({description.spec.extras[UNDECIDED_LAYOUT]}); give "
            "layout=fill-in or layout=anchor-first",
            ErrorCode.CHECKPOINT_AMBIGUOUS,
        )
    kept = [name for name in ((*_TABLES, *_MAPS) if shared else _MAPS) if name in description.names.aside]
    shapes = {name: (tensor_shape, _kept(t, dtype)) for name, tensor_shape, t in _sizes(description, kept)}
    total = sum(torch.Size(s).numel() * d.itemsize for s, d in shapes.values())
    names = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
    matrix = next(d for s, d in shapes.values() if len(s) == 2)
    config = zlab_config(description.spec, dtype=names.get(matrix, "float32"))
    out.mkdir(parents=True, exist_ok=True)
    digest = WeightsHash()
    written = write_safetensors(
        out / "model.safetensors",
        shapes,
        _tensors(description, kept, digest),
        progress=start("writing weights", total),
    )
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    bytes_in = sum(p.stat().st_size for p in description.file.paths)
    report = start("hashing the source", bytes_in)
    conversion = Conversion(
        source=source.name,
        source_sha256={p.name: _file_sha256(p, report) for p in description.file.paths},
        output_sha256=written,
        weights_sha256=digest.hexdigest(),
        family=description.spec.family,
        format=description.spec.format,
        tensors=len(shapes),
        bytes_in=bytes_in,
        bytes_out=total,
        left_out=sorted(set(description.names.aside) - set(kept)) + sorted(description.names.ignored),
        warnings=list(description.spec.warnings),
    )
    text = json.dumps({name: getattr(conversion, name) for name in Conversion.__slots__}, indent=2)
    (out / "conversion.json").write_text(text + "\n")
    return conversion


def _sizes(description: Description, kept: list[str]) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
    """Name, shape and (still mapped) tensor of everything to be written, in order."""
    for name, tensor in read_tensors(description, check=False):
        yield name, tuple(description.expected[name]), tensor
    for name in kept:
        found = read_aside(description, name)
        assert found is not None
        yield name, tuple(found.shape), found


def _tensors(description: Description, kept: list[str], digest: WeightsHash) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in read_tensors(description):
        digest.add(name, tensor)
        yield name, tensor
    for name in kept:
        found = read_aside(description, name)
        assert found is not None
        yield name, found


def _kept(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def _file_sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASH_BYTES):
            digest.update(piece)
            progress(len(piece))
    return digest.hexdigest()
