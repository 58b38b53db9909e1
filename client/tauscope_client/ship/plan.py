"""Which files a transfer consists of, and what is shipped of each."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from tauscope_client.ship import safetensors_content, scripts, torch_content
from tauscope_client.ship.content import Content, Stored
from tauscope_client.ship.hosts import BrokenStreamError, Host
from tauscope_client.ship.location import Location
from tauscope_client.ship.meter import Meter
from tauscope_client.ship.transfer import FileFacts, file_facts
from tauscope_wire.errors import CheckpointError, ErrorCode, RequestError

__all__ = ["PlannedFile", "plan_files"]

NOT_WEIGHTS = re.compile(
    r"^(optimizer|scheduler|rng_state|scaler|training_args|trainer_state|events\.out)", re.IGNORECASE
)
"""Files of a trainer beside the weights; left out with --weights-only."""

PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt"})


class PlannedFile(NamedTuple):
    """One file of a transfer."""

    source: Location
    destination: Location
    content: Content
    facts: FileFacts


def plan_files(
    source: Host,
    destination: Host,
    ends: tuple[Location, Location],
    *,
    weights_only: bool,
    meter: Meter,
) -> list[PlannedFile]:
    """List what is to be shipped, smallest first, and make the folders for it.

    A folder is shipped with everything below it into the named folder; a file into the named file, or into the named
    folder if there is one.

    Raises:
        RequestError: nothing there, or a name that would leave the destination.
        CheckpointError: `weights_only` and a file that cannot be taken apart.
        BrokenStreamError: a host did not answer.
    """
    here, there = ends
    kind = source.run(scripts.stat_kind(here.path)).decode().strip()
    if kind == "missing":
        raise RequestError(f"{here}: no such file or folder on {source}")
    if kind == "file":
        facts = file_facts(source, here.path)
        assert facts is not None
        if there.path.endswith("/") or destination.run(scripts.stat_kind(there.path)).decode().strip() == "folder":
            there = there.child(here.name)
        files = [(here, there, facts)]
    else:
        files = [(here.child(name), there.child(name), facts) for name, facts in _below(source, here)]
    planned = []
    for begin, end, facts in sorted(files, key=lambda file: (file[2].nbytes, file[0].path)):
        if weights_only and kind == "folder" and NOT_WEIGHTS.match(begin.name):
            meter.note(f"{begin.name}: left out, not weights")
            continue
        planned.append(PlannedFile(begin, end, _content_of(source, begin, facts, weights_only, meter), facts))
    for folder in sorted({str(PurePosixPath(file.destination.path).parent) for file in planned}):
        destination.run(scripts.make_folder(folder))
    return planned


def _below(source: Host, folder: Location) -> list[tuple[str, FileFacts]]:
    found = []
    for line in source.run(scripts.list_files(folder.path)).decode(errors="surrogateescape").splitlines():
        try:
            size, changed, name = line.split(" ", 2)
            facts = FileFacts(int(size), int(changed))
        except ValueError:
            raise RequestError(f"{folder}: a file name with a line break in it; rename it") from None
        name = name.removeprefix("./")
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise RequestError(f"{folder}: refusing the file name {name!r}, which leads out of the folder")
        found.append((name, facts))
    if not found:
        raise RequestError(f"{folder}: the folder is empty")
    return found


def _content_of(source: Host, location: Location, facts: FileFacts, weights_only: bool, meter: Meter) -> Content:
    suffix = PurePosixPath(location.path).suffix
    if not weights_only or suffix not in PICKLE_SUFFIXES | {".safetensors"}:
        return Content.whole(facts.nbytes)

    def read_ranges(ranges: Sequence[Stored]) -> bytes:
        try:
            return source.run(scripts.read_ranges(location.path, ranges))
        except BrokenStreamError as error:
            raise CheckpointError(f"{location}: {error}", ErrorCode.CHECKPOINT_MISSING) from None

    if suffix == ".safetensors":
        selection = safetensors_content.model_part(
            str(location), facts.nbytes, lambda offset, count: read_ranges([Stored(offset, count)])
        )
    else:
        selection = torch_content.model_part(str(location), facts.nbytes, read_ranges)
    if selection.dropped:
        shown = ", ".join(selection.dropped[:4]) + (", ..." if len(selection.dropped) > 4 else "")
        meter.note(
            f"{location.name}: {selection.num_tensors} model tensors, {selection.content.nbytes / 1e9:.2f} of "
            f"{facts.nbytes / 1e9:.2f} GB; left out: {shown}"
        )
    return selection.content
