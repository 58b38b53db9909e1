"""Options of the command line that both services have: where to listen, for whom, and what to log."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "HostOption",
    "KeysOption",
    "LogLevelOption",
    "MaxQueuedOption",
    "OpenOption",
    "PortOption",
    "TlsCertOption",
    "TlsKeyOption",
    "UdsOption",
]

HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")]
UdsOption = Annotated[Path | None, typer.Option(help="Unix socket to listen on instead.")]
KeysOption = Annotated[Path | None, typer.Option(help="File of API keys (`keys add`).")]
OpenOption = Annotated[bool, typer.Option("--open-to-network", help="Serve a network address without keys.")]
TlsCertOption = Annotated[Path | None, typer.Option(help="Certificate (PEM) for HTTPS.")]
TlsKeyOption = Annotated[Path | None, typer.Option(help="Its key (PEM).")]
MaxQueuedOption = Annotated[int, typer.Option(min=1, help="Requests that may wait.")]
LogLevelOption = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="Of the log.")]
