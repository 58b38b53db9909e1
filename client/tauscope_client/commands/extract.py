"""`tauscope extract`."""

import re
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tauscope_client.commands.hidden import ConventionName, DtypeName
from tauscope_client.commands.options import (
    TARGET_DEFAULT,
    DeadlineS,
    Key,
    TemplateKwargs,
    parse_template_kwargs,
)
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode
from tauscope_client.extract.display import TerminalMeter
from tauscope_client.extract.extracting import Extracted, extract
from tauscope_client.extract.fleet import Fleet
from tauscope_client.extract.layouts import LAYOUTS
from tauscope_client.extract.rate import size
from tauscope_client.extract.settings import ExtractSettings
from tauscope_client.plain import shown
from tauscope_client.target import TargetClient
from tauscope_client.terminal import stdout_console
from tauscope_wire.connection import Connection
from tauscope_wire.errors import RequestError
from tauscope_wire.tracing import active_tracing

__all__ = ["extract_command"]

MAX_SHOWN = 5
"""Texts left out that are named; all of them are in `samples.jsonl`."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class LayoutName(StrEnum):
    """Who reads the files."""

    PLAIN = "plain"
    SPECULATORS = "speculators"
    SPECFORGE = "specforge"
    SPECFORGE_DFLASH = "specforge-dflash"
    SPECFORGE_DSPARK = "specforge-dspark"


class LossName(StrEnum):
    """Which tokens count for the loss."""

    ASSISTANT = "assistant"
    LAST = "last"
    ALL = "all"


def extract_command(
    texts: Annotated[
        Path,
        typer.Argument(
            help="JSON lines, or one JSON array: references, ids with or without a loss mask, messages, or text."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; an unfinished one is continued.")],
    layers: Annotated[
        str, typer.Option("--layers", "-l", help="Layer ids, e.g. 1,16,31,46,61; -1 is the embedding output.")
    ],
    layout: Annotated[LayoutName, typer.Option(help="Who reads the files: see docs/extract-hidden-states.md.")] = (
        LayoutName.PLAIN
    ),
    convention: Annotated[
        ConventionName, typer.Option(help="output: id k is the output of decoder layer k; tuple: k + 1 is.")
    ] = ConventionName.OUTPUT,
    final_norm: Annotated[
        bool, typer.Option("--final-norm", help="plain: also the last layer after the final norm.")
    ] = False,
    dtype: Annotated[DtypeName, typer.Option(help="Element type of the states.")] = DtypeName.BFLOAT16,
    loss: Annotated[
        LossName, typer.Option(help="Tokens that count for the loss: every answer, the last answer, or all tokens.")
    ] = LossName.ASSISTANT,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Cut longer texts to so many tokens. [default: refuse them]")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="Do not begin when the data set takes more, e.g. 500G (decimal).")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests in work at a time.")] = 4,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read finished files again; make damaged ones again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tokenise, estimate the size, and stop.")] = False,
    mixed_numerics: Annotated[
        bool, typer.Option("--mixed-numerics", help="Allow services (or runs) that compute in different ways.")
    ] = False,
    template_kwargs: TemplateKwargs = "{}",
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            envvar="TAUSCOPE_TARGET_URL",
            help=f"Address of a target service; repeat it for several. [default: {TARGET_DEFAULT}]",
            show_default=False,
        ),
    ] = None,
    key: Key = None,
    deadline_s: DeadlineS = None,
) -> None:
    """Write the hidden states of a whole data set to files, for offline training."""
    settings = ExtractSettings(
        layers=_layers(layers),
        layout=LAYOUTS[layout.value],
        convention=convention.value,
        final_norm=final_norm,
        dtype=dtype.value,
        loss=loss.value,
        template_kwargs=parse_template_kwargs(template_kwargs),
        max_length=max_length,
        concurrency=concurrency,
        max_bytes=None if max_bytes is None else _bytes(max_bytes),
        deadline_s=deadline_s,
        mixed_numerics=mixed_numerics,
    )
    with ExitStack() as stack:
        urls = target or [TARGET_DEFAULT]
        tracing = active_tracing()
        clients = [TargetClient(stack.enter_context(Connection(url, key=key, tracing=tracing))) for url in urls]
        fleet = Fleet(clients, mixed_numerics=mixed_numerics)
        meter = stack.enter_context(TerminalMeter(time.monotonic))
        done = extract(texts, out, settings, fleet=fleet, meter=meter, verify=verify, dry_run=dry_run)
    _show(done, out, verify=verify, dry_run=dry_run)
    if done.refused or done.failures:
        raise typer.Exit(ExitCode.INCOMPLETE)


extract_command.__doc__ = f"{extract_command.__doc__}\n\n{EXIT_CODES_HELP}"


def _show(done: Extracted, out: Path, *, verify: bool, dry_run: bool) -> None:
    lines = []
    if dry_run:
        lines.append(f"{done.num_samples} samples would take {size(done.estimated_bytes)} in {out}")
    lines.append(
        f"{out}: {done.num_finished} of {done.num_samples} samples, {done.num_tokens} tokens, {size(done.num_bytes)}"
    )
    if verify:
        lines.append(
            f"verified: {len(done.damaged)} damaged" + (", made again" if done.damaged and not dry_run else "")
        )
    reasons = [(one.id, one.reason) for one in done.refused]
    for what, found in (("left out", reasons), ("failed", [(one.id, one.message) for one in done.failures])):
        lines += [f"{what}: {name}: {reason}" for name, reason in found[:MAX_SHOWN]]
        if len(found) > MAX_SHOWN:
            lines.append(f"{what}: {len(found) - MAX_SHOWN} more")
    if done.failures:
        lines.append("the same command tries the failed ones again")
    console = stdout_console()
    for line in lines:
        console.print(shown(line), soft_wrap=True)


def _layers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise RequestError(f"--layers {text!r}: expected integers with commas, e.g. 1,16,31") from error


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip().upper())
    if match is None:
        raise RequestError(f"--max-bytes {text!r}: expected a number with K, M, G or T, e.g. 500G")
    return int(float(match[1]) * _UNITS[match[2]])
