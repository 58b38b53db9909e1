"""`tauscope ship`."""

from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tauscope_client.ship.hosts import BrokenStreamError, Host, SshOptions
from tauscope_client.ship.location import parse_location
from tauscope_client.ship.plan import plan_files
from tauscope_client.ship.transfer import Transfer
from tauscope_wire.errors import RequestError, UnreachableError

__all__ = ["register", "ship_command"]

PLAIN_STEPS = 20
"""Without a terminal, a file reports at most this many times."""


def register(app: typer.Typer) -> None:
    """Add the command to a program."""
    app.command("ship")(ship_command)


def ship_command(
    source: Annotated[str, typer.Argument(help="File or folder: PATH, user@host:PATH, or ssh://user@host:port/PATH.")],
    destination: Annotated[str, typer.Argument(help="Where to, in the same forms.")],
    *,
    weights_only: Annotated[
        bool,
        typer.Option("--weights-only", help="Leave out optimizer state and the like of .pt and safetensors files."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files at the destination that differ.")
    ] = False,
    ssh_config: Annotated[Path | None, typer.Option(help="In place of ~/.ssh/config.", show_default=False)] = None,
) -> None:
    """Stream a checkpoint between two hosts through this machine, without touching its disk.

    An interrupted transfer goes on where it stopped when the same command runs again. Files get their names only when
    the SHA-256 of both ends agree. Both hosts need ssh and coreutils, nothing else.
    """
    ends = (parse_location(source), parse_location(destination))
    if ends[0] == ends[1]:
        raise RequestError("source and destination are the same")
    if ssh_config is not None and not ssh_config.is_file():
        raise RequestError(f"--ssh-config {ssh_config}: no such file")
    options = SshOptions(config=ssh_config)
    with Host(ends[0], options) as begin, Host(ends[1], options) as end, _Meter() as meter:
        try:
            files = plan_files(begin, end, ends, weights_only=weights_only, meter=meter)
        except BrokenStreamError as error:
            raise UnreachableError(str(error)) from None
        transfer = Transfer(begin, end, meter=meter, overwrite=overwrite)
        shipped = [transfer.ship(file.source, file.destination, file.content, file.facts) for file in files]
    total = sum(file.content.nbytes for file in files)
    typer.echo(
        f"{ends[1]}: {len(files)} file{'s' * (len(files) != 1)}, {total} bytes, checksums of both ends agree"
        + (f" ({shipped.count(False)} were there already)" if False in shipped else "")
    )


class _Meter:
    """Bars with rates on stderr; plain lines when it is no terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._name = ""
        self._done = self._total = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, name: str, total: int, done: int) -> None:
        """Show a file; after an interruption, again."""
        with self._lock:
            self._name, self._total, self._done = name, total, done
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(escape(name), total=total)
            self._bars.update(self._tasks[name], completed=done, total=total)
            if not self._console.is_terminal:
                self.note(f"{name}: {total} bytes" + (f", {done} are there" if done else ""))

    def moved(self, nbytes: int) -> None:
        """Advance the bar."""
        with self._lock:
            before, self._done = self._done, self._done + nbytes
            self._bars.advance(self._tasks[self._name], nbytes)
            step = self._done * PLAIN_STEPS // max(1, self._total)
            if not self._console.is_terminal and step > before * PLAIN_STEPS // max(1, self._total):
                self.note(f"{self._name}: {100 * step // PLAIN_STEPS} %")

    def note(self, text: str) -> None:
        """A line of its own."""
        self._console.print(escape(text), soft_wrap=True)
