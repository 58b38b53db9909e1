"""`tauscope-drafter convert`: any supported checkpoint to weights-only safetensors."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from tauscope_drafter.commands.extras import require_extra
from tauscope_drafter.commands.settings_option import SetOption, options_of
from tauscope_drafter.commands.sizes import format_bytes

_REPORT_EVERY_S = 0.5


def convert_command(
    source: Annotated[Path, typer.Argument(help="File or folder of the drafter.")],
    out: Annotated[Path, typer.Argument(help="Folder to write config.json and model.safetensors to.")],
    *,
    setting: SetOption = None,
    no_shared: Annotated[
        bool, typer.Option("--no-shared", help="Leave out embedding and head; the target's are used.")
    ] = False,
    dtype: Annotated[Literal["keep", "bfloat16", "float32"], typer.Option(help="Of the tensors written.")] = "keep",
) -> None:
    """Write the weights of a drafter, and only those, in the form of z-lab. Memory stays bounded on any file."""
    require_extra()
    import torch

    from tauscope_drafter.checkpoint.conversion import convert

    conversion = convert(
        source,
        out,
        options_of(setting),
        shared=not no_shared,
        dtype=None if dtype == "keep" else getattr(torch, dtype),
        start=_progress,
    )
    typer.echo(
        f"{out}: {conversion.family}, {conversion.tensors} tensors, {format_bytes(conversion.bytes_out)} of "
        f"{format_bytes(conversion.bytes_in)}; sha256 {conversion.output_sha256}"
    )
    for warning in conversion.warnings:
        typer.echo(f"warning: {warning}", err=True)


def _progress(what: str, total: int) -> Callable[[int], None]:
    """Percentages on standard error, on one line of a terminal."""
    done, last = 0, 0.0
    is_terminal = sys.stderr.isatty()

    def report(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if (now - last >= _REPORT_EVERY_S and is_terminal) or done >= total:
            last = now
            end = "\n" if done >= total else ""
            typer.echo(
                f"\r{what}: {100 * done / max(total, 1):3.0f} % of {format_bytes(total)}{end}", nl=False, err=True
            )

    return report
