"""A whole extraction: prepare, check the space, fetch what is missing, and say what is there.

The output folder holds `extract.json` (what was asked for), `samples.jsonl` (the ids), `index.jsonl` (what is
finished) and the files of the layout. A kill at any moment loses the samples in work and nothing else: a file appears
whole, and counts only once its line stands in the index.
"""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tauscope_client.extract.dataset import ROWS_NAME, write_dataset
from tauscope_client.extract.fleet import Fleet
from tauscope_client.extract.index import Index, is_intact
from tauscope_client.extract.layouts import estimated_bytes
from tauscope_client.extract.preparing import prepare_samples
from tauscope_client.extract.rate import Meter, Rate, size
from tauscope_client.extract.samples import Refused, SampleTable
from tauscope_client.extract.settings import ExtractSettings, check_same_record, record_of
from tauscope_client.extract.writing import SampleWriter
from tauscope_client.failures import Failure, concerns_one_prompt
from tauscope_client.references.retries import Retries
from tauscope_client.runs.files import write_json
from tauscope_client.runs.lock import FolderLock
from tauscope_client.workers import run_all
from tauscope_wire.errors import CheckpointError, RequestError, TauscopeError, TooLargeError

__all__ = ["Extracted", "extract"]

PREPARED_PAUSE_S = 10.0

NO_PYARROW = (
    f"pyarrow is not installed: {ROWS_NAME} is written, the data set for load_from_disk is not. Install it with: "
    "pip install 'tauscope[report]' and run the same command again, or see docs/extract-hidden-states.md"
)


@dataclass(frozen=True)
class Extracted:
    """What is in the folder after a run.

    Attributes:
        num_samples: accepted texts.
        num_finished: of them, samples whose file is there.
        num_tokens, num_bytes: of the finished samples.
        damaged: ids whose files had to be made again.
        refused: texts that were left out.
        failures: samples that a later run will try again.
        estimated_bytes: of the whole data set, before it was begun.
    """

    num_samples: int
    num_finished: int
    num_tokens: int
    num_bytes: int
    damaged: tuple[str, ...]
    refused: tuple[Refused, ...]
    failures: tuple[Failure, ...]
    estimated_bytes: int


def extract(
    texts: Path,
    folder: Path,
    settings: ExtractSettings,
    *,
    fleet: Fleet,
    meter: Meter,
    verify: bool = False,
    dry_run: bool = False,
    retries: Retries | None = None,
    clock: Callable[[], float] = time.monotonic,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Extracted:
    """Extract a data set into a folder, or go on with it.

    Args:
        texts: JSON lines, see `texts`.
        folder: the output.
        settings: what to extract.
        fleet: the services.
        meter: shown how far it is.
        verify: read what is finished again, and make again what is damaged.
        dry_run: prepare and estimate, fetch nothing.
        retries: of requests.
        clock: seconds, for the rate.
        free_bytes: room on the disk of a folder.

    Raises:
        MismatchError: the folder holds another extraction, or another process works there.
        TooLargeError: the data set would be larger than allowed, or than the disk has room.
        TauscopeError: a failure that concerns all samples. What was finished is kept.
    """
    retries = retries if retries is not None else Retries()
    record = record_of(settings, texts, fleet.info)
    with FolderLock(folder):
        _claim(folder, record, settings)
        table = prepare_samples(
            texts,
            folder / "samples.jsonl",
            settings,
            fleet=fleet,
            retries=retries,
            on_done=_now_and_then(meter, clock),
        )
        meter.note(f"prepared {len(table)} samples, left out {len(table.refused)}")
        if not len(table):
            first = f": {table.refused[0].id}: {table.refused[0].reason}" if table.refused else ""
            raise RequestError(f"{texts}: no text can be extracted{first}")
        with closing(Index(folder / "index.jsonl")) as index:
            damaged = index.keep(lambda entry: is_intact(folder, entry)) if verify else []
            writer = SampleWriter(folder, settings, fleet, retries, note=meter.note)
            sizes = _sizes(table, settings, fleet, len(writer.planes))
            missing = [row for row in range(len(table)) if row not in index.entries]
            _check_room(folder, sum(sizes), sum(sizes[row] for row in missing), settings, free_bytes)
            failures: list[Failure] = []
            if not dry_run:
                failures = _fetch(missing, table, index, writer, settings, sizes=sizes, meter=meter, clock=clock)
                if settings.layout.name == "speculators" and not write_dataset(table, folder):
                    meter.note(NO_PYARROW)
            return Extracted(
                num_samples=len(table),
                num_finished=len(index.entries),
                num_tokens=sum(entry.num_tokens for entry in index.entries.values()),
                num_bytes=sum(entry.nbytes for entry in index.entries.values()),
                damaged=tuple(entry.id for entry in damaged),
                refused=tuple(table.refused),
                failures=tuple(failures),
                estimated_bytes=sum(sizes),
            )


def _now_and_then(meter: Meter, clock: Callable[[], float]) -> Callable[[int], None]:
    """Tells of prepared texts, at most once in `PREPARED_PAUSE_S`."""
    next_s = clock() + PREPARED_PAUSE_S

    def tell(num_texts: int) -> None:
        nonlocal next_s
        if clock() >= next_s:
            next_s = clock() + PREPARED_PAUSE_S
            meter.note(f"prepared {num_texts} texts")

    return tell


def _claim(folder: Path, record: dict[str, object], settings: ExtractSettings) -> None:
    path = folder / "extract.json"
    if path.exists():
        try:
            old = json.loads(path.read_bytes())
        except ValueError as error:
            raise CheckpointError(f"{path}: damaged; use another --out") from error
        check_same_record(old, record, folder, mixed_numerics=settings.mixed_numerics)
    else:
        write_json(path, record)
    for part in folder.rglob(".*.part"):  # of a killed run: the lock says that nobody writes them
        part.unlink(missing_ok=True)


def _sizes(table: SampleTable, settings: ExtractSettings, fleet: Fleet, num_planes: int) -> list[int]:
    plane_bytes = settings.plane_bytes(fleet.info.model.hidden_size)
    return [estimated_bytes(num, num_planes=num_planes, plane_bytes=plane_bytes) for num in table.num_tokens]


def _check_room(
    folder: Path, whole: int, missing: int, settings: ExtractSettings, free_bytes: Callable[[Path], int]
) -> None:
    if settings.max_bytes is not None and whole > settings.max_bytes:
        raise TooLargeError(
            f"the data set takes {size(whole)}; --max-bytes allows {size(settings.max_bytes)}: fewer layers, fewer "
            "texts, or --max-length"
        )
    free = free_bytes(folder)
    if missing > free:
        raise TooLargeError(f"{folder}: {size(missing)} are to be written, the disk has {size(free)} free")


def _fetch(
    rows: list[int],
    table: SampleTable,
    index: Index,
    writer: SampleWriter,
    settings: ExtractSettings,
    *,
    sizes: list[int],
    meter: Meter,
    clock: Callable[[], float],
) -> list[Failure]:
    failures: list[Failure] = []
    rate = Rate(
        num_samples=len(table),
        earlier_samples=len(table) - len(rows),
        num_tokens=sum(table.num_tokens[row] for row in rows),
        num_bytes=sum(sizes[row] for row in rows),
        clock=clock,
    )
    meter.begin(rate)

    def work(row: int) -> None:
        sample = table.read(row)
        try:
            entry = writer.write(sample)
        except TauscopeError as error:
            if not concerns_one_prompt(error):
                raise
            failures.append(Failure.of(sample.id, "hidden", error))
            return
        index.add(entry)
        rate.add(entry.num_tokens, entry.nbytes)
        meter.moved(rate)

    run_all(work, rows, concurrency=settings.concurrency)
    return failures
