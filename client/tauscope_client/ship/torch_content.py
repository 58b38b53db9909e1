"""A `.pt` file without the optimizer and what else is not the model, by ranged reads of its directory and pickle."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tauscope_client.ship import torch_pickle, zip_archive
from tauscope_client.ship.content import Stored
from tauscope_client.ship.safetensors_content import Selection
from tauscope_wire.errors import CheckpointError

__all__ = ["model_part"]

MAX_PICKLE_BYTES = 256 << 20
"""The pickle holds names and shapes, not data: a megabyte for ten thousand tensors."""

NOT_MODEL = re.compile(r"optim|sched|scaler|rng|random|grad|loss_fn|criterion|sampler|dataloader", re.IGNORECASE)
"""Top-level keys under which trainers keep everything but the model."""

ReadRanges = Callable[[Sequence[Stored]], bytes]


def model_part(name: str, nbytes: int, read_ranges: ReadRanges) -> Selection:
    """Keep the tensors of the model, under the same names, and plain values (steps, configuration) beside them.

    Args:
        name: for messages.
        nbytes: size of the file.
        read_ranges: several ranges of it, one after the other.

    Raises:
        CheckpointError: not a `.pt` file that torch 1.6 or later wrote, or one without tensors.
    """

    def read(offset: int, count: int) -> bytes:
        data = read_ranges([Stored(offset, count)])
        if len(data) != count:
            raise CheckpointError(f"{name}: ends early; {count} bytes at {offset} are not there")
        return data

    entries = zip_archive.read_directory(name, nbytes, read)
    pickles = [entry for entry in entries.values() if entry.name.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].nbytes > MAX_PICKLE_BYTES:
        raise CheckpointError(f"{name}: not a checkpoint of torch (no data.pkl in the archive)")
    root = pickles[0].name.removesuffix("data.pkl")
    everything = torch_pickle.load(name, zip_archive.read_entry(pickles[0], read))
    dropped: list[str] = []
    kept = _model_of(everything, dropped)
    wanted = torch_pickle.storages_of(kept)
    if not wanted:
        raise CheckpointError(f"{name}: no model tensors in it; ship it without --weights-only")
    missing = [key for key in wanted if f"{root}data/{key}" not in entries]
    if missing:
        raise CheckpointError(f"{name}: damaged, {len(missing)} tensors have no data (data/{missing[0]})")
    stored = sorted((entries[f"{root}data/{key}"] for key in wanted), key=lambda entry: entry.header_offset)
    made = {pickles[0].name: torch_pickle.dump(kept)}
    for small in (".format_version", ".storage_alignment", "byteorder", "version"):
        if f"{root}{small}" in entries:
            made[f"{root}{small}"] = zip_archive.read_entry(entries[f"{root}{small}"], read)
    headers = read_ranges([Stored(entry.header_offset, 30) for entry in stored])
    places = [zip_archive.data_offset(entry, headers[30 * i : 30 * i + 30]) for i, entry in enumerate(stored)]
    content = zip_archive.archive_of(made, list(zip(stored, places, strict=True)))
    return Selection(content, _num_tensors(kept), tuple(dropped))


def _model_of(everything: Any, dropped: list[str]) -> Any:
    if not isinstance(everything, Mapping):
        return everything if torch_pickle.is_tensor(everything) else None
    kept: dict[Any, Any] = OrderedDict() if isinstance(everything, OrderedDict) else {}
    for key, value in everything.items():
        is_optimizer = isinstance(value, Mapping) and "param_groups" in value
        if is_optimizer or (isinstance(key, str) and not torch_pickle.is_tensor(value) and NOT_MODEL.search(key)):
            dropped.append(str(key))
            continue
        pruned = _without_objects(value, 0)
        if pruned is None and value is not None:
            dropped.append(str(key))
        else:
            kept[key] = pruned
    return kept


def _without_objects(value: Any, depth: int) -> Any:
    """`value` with only tensors and plain values in it; None when nothing of it can be kept."""
    if torch_pickle.is_tensor(value) or torch_pickle.is_plain(value):
        return value
    if isinstance(value, Mapping) and depth < torch_pickle.MAX_DEPTH:
        parts = {key: _without_objects(item, depth + 1) for key, item in value.items() if torch_pickle.is_plain(key)}
        kept = {key: item for key, item in parts.items() if item is not None or value[key] is None}
        container = OrderedDict if isinstance(value, OrderedDict) else dict
        return container(kept) if kept or not value else None
    return None


def _num_tensors(kept: Any) -> int:
    if torch_pickle.is_tensor(kept):
        return 1
    return sum(map(_num_tensors, kept.values())) if isinstance(kept, Mapping) else 0
