"""A checkpoint folder as files: configuration, tensor headers, revision. Reads headers only; never torch.

What this module does not do: it does not know which tensors a model needs (`loading`), nor open pickles (`loading`
does, with `weights_only=True`). Every malformed file is a `CheckpointError` that names it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tauscope_wire.errors import CheckpointError, ErrorCode

DTYPE_BYTES: Mapping[str, int] = (
    dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1)
    | dict.fromkeys(("F16", "BF16", "I16"), 2)
    | dict.fromkeys(("F32", "I32"), 4)
    | dict.fromkeys(("F64", "I64"), 8)
)
"""Bytes of an element, by its name in a safetensors header."""
MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own bound on its JSON header."""
SAMPLE_BYTES = 4096
"""Bytes of each tensor's start and end that enter the revision: two training steps differ in every tensor."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a safetensors file; `start` and `stop` are absolute byte offsets in `file`."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.stop - self.start


@dataclass(frozen=True)
class CheckpointFolder:
    """A checkpoint folder whose headers were read and checked.

    Attributes:
        path: the folder.
        config: `config.json` as read.
        weights: `safetensors`, or `bin` for pickled weights.
        entries: tensors by name (safetensors only).
        bin_files: pickled weight files (`bin` only).
        stop_token_ids: ids that end a text, from the generation configuration, else from the configuration.
    """

    path: Path
    config: Mapping[str, Any]
    config_sha256: str
    weights: Literal["safetensors", "bin"]
    entries: Mapping[str, TensorEntry] = field(default_factory=dict)
    bin_files: tuple[Path, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The part of the configuration that describes the text model."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, dict) else self.config

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, or of the pickled files."""
        if self.weights == "bin":
            return sum(file.stat().st_size for file in self.bin_files)
        return sum(entry.nbytes for entry in self.entries.values())

    def revision(self) -> str:
        """`sha256:...` over configuration, tensor names, shapes, dtypes, and a sample of every tensor's bytes."""
        digest = hashlib.sha256(self.config_sha256.encode())
        for file in self.bin_files:
            _sample(digest, file, 0, file.stat().st_size)
        for name in sorted(self.entries):
            entry = self.entries[name]
            digest.update(f"{name}|{entry.dtype}|{entry.shape}".encode())
            _sample(digest, entry.file, entry.start, entry.stop)
        return f"sha256:{digest.hexdigest()[:32]}"


def open_checkpoint(path: Path) -> CheckpointFolder:
    """Read the configuration and all headers of a checkpoint folder.

    Raises:
        CheckpointError: no such folder, no configuration, no weights, or a file that is damaged or incomplete.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; give a checkpoint folder", ErrorCode.CHECKPOINT_MISSING)
    config_file = path / "config.json"
    if not config_file.is_file():
        raise CheckpointError(f"{path} has no config.json; it is not a checkpoint", ErrorCode.CHECKPOINT_MISSING)
    config = _read_json(config_file)
    config_sha256 = hashlib.sha256(config_file.read_bytes()).hexdigest()
    stops = _stop_ids(path, config)
    files, listed = _weight_files(path)
    if files and files[0].suffix == ".bin":
        return CheckpointFolder(path, config, config_sha256, "bin", bin_files=tuple(files), stop_token_ids=stops)
    entries: dict[str, TensorEntry] = {}
    for file in files:
        for entry in read_header(file):
            if entry.name in entries:
                raise CheckpointError(
                    f"{file.name} and {entries[entry.name].file.name} both hold {entry.name}; keep one",
                    ErrorCode.CHECKPOINT_AMBIGUOUS,
                )
            entries[entry.name] = entry
    for name, shard in listed.items():
        if name not in entries:
            raise CheckpointError(
                f"{shard} lacks tensor {name}, which the index promises; download the shard again",
                ErrorCode.TENSOR_MISSING,
                details={"tensor": name, "file": shard},
            )
    return CheckpointFolder(path, config, config_sha256, "safetensors", entries=entries, stop_token_ids=stops)


def read_header(file: Path) -> Iterator[TensorEntry]:
    """Tensors of one safetensors file, checked against its size.

    Raises:
        CheckpointError: the header is damaged, or describes bytes that the file does not have.
    """
    header, base = _header(file)
    size = file.stat().st_size
    for name, facts in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(facts["dtype"]), tuple(int(n) for n in facts["shape"])
            start, stop = (base + int(offset) for offset in facts["data_offsets"])
        except (TypeError, KeyError, ValueError):
            raise _corrupt(file, f"the entry of {name} is malformed") from None
        count = 1
        for extent in shape:
            count *= extent
        expected = count * DTYPE_BYTES.get(dtype, 0)
        if not base <= start <= stop <= size:
            raise _corrupt(file, f"{name} lies at bytes {start}..{stop} of {size}: the file is cut short")
        if stop - start != expected:
            raise _corrupt(file, f"{name} has {stop - start} bytes; {dtype} of shape {list(shape)} needs {expected}")
        yield TensorEntry(name, file, dtype, shape, start, stop)


def read_metadata(file: Path) -> dict[str, str]:
    """The free text fields of a safetensors header.

    Raises:
        CheckpointError: the header is damaged.
    """
    found = _header(file)[0].get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begins."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise _corrupt(file, f"its header claims {length} bytes and the file has {size}")
        text = stream.read(length)
    try:
        header = json.loads(text)
    except ValueError:
        raise _corrupt(file, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _corrupt(file, "its header is not a map")
    return header, 8 + length


def _weight_files(path: Path) -> tuple[list[Path], dict[str, str]]:
    """Weight files in order of preference, and what an index says is where."""
    for index_name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        index_file = path / index_name
        if index_file.is_file():
            weight_map = _read_json(index_file).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise _corrupt(index_file, "it has no weight_map")
            return [_shard(path, name) for name in sorted(set(map(str, weight_map.values())))], weight_map
    files = sorted(path.glob("*.safetensors"))
    if files:
        return files, {}
    pickled = path / "pytorch_model.bin"
    if pickled.is_file():
        return [pickled], {}
    raise CheckpointError(
        f"{path} has no *.safetensors and no pytorch_model.bin: there are no weights to load",
        ErrorCode.CHECKPOINT_MISSING,
    )


def _shard(path: Path, name: str) -> Path:
    if "/" in name or "\\" in name or name.startswith("."):
        raise CheckpointError(
            f"the index of {path} names the file {name!r}, outside the folder; refused", ErrorCode.CHECKPOINT_UNSAFE
        )
    file = path / name
    if not file.is_file():
        raise CheckpointError(f"{path} lacks {name}, which its index lists; download it", ErrorCode.CHECKPOINT_MISSING)
    return file


def _stop_ids(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    generation = path / "generation_config.json"
    sources = [_read_json(generation)] if generation.is_file() else []
    inner = config.get("text_config")
    sources += [dict(config), dict(inner) if isinstance(inner, dict) else {}]
    for source in sources:
        found = source.get("eos_token_id")
        if found is not None:
            return tuple(int(i) for i in (found if isinstance(found, list) else [found]))
    return ()


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        raise _corrupt(file, "it is not JSON") from None
    if not isinstance(content, dict):
        raise _corrupt(file, "it is not a map")
    return content


def _sample(digest: "hashlib._Hash", file: Path, start: int, stop: int) -> None:
    with file.open("rb") as stream:
        stream.seek(start)
        digest.update(stream.read(min(SAMPLE_BYTES, stop - start)))
        stream.seek(max(start, stop - SAMPLE_BYTES))
        digest.update(stream.read(min(SAMPLE_BYTES, stop - start)))


def _corrupt(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{file} cannot be read: {why}", ErrorCode.CHECKPOINT_CORRUPT, details={"file": file.name})
