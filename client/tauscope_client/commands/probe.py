"""`tauscope probe`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tauscope_client.addresses import Addresses
from tauscope_client.commands.eval import DEFAULT_MAX_NEW_TOKENS, DtypeName
from tauscope_client.commands.options import (
    DRAFTER_DEFAULT,
    TARGET_DEFAULT,
    DrafterUrl,
    Key,
    TargetUrl,
    TemplateKwargs,
    parse_template_kwargs,
)
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode
from tauscope_client.failures import Failure
from tauscope_client.probe.probing import Probe, ProbeSettings, probe
from tauscope_client.probe.report import HEADS, cells, ranked
from tauscope_client.probe.texts import answers_to, cut, frozen_references, spread
from tauscope_client.references.choice import REFERENCE_HELP, parse_reference
from tauscope_client.terminal import TerminalProgress, stdout_console
from tauscope_wire.errors import RequestError

__all__ = ["probe_command"]


def probe_command(
    texts: Annotated[
        Path, typer.Argument(help="Run folder or references.jsonl (frozen answers), or prompts to make answers for.")
    ],
    *,
    drafter: Annotated[str, typer.Option("--drafter", "-d", help="Name of a loaded drafter.")],
    reference: Annotated[str, typer.Option("--reference", "-r", help=f"For prompts only. {REFERENCE_HELP}")] = "target",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for probe.md and probe.json; an unfinished probe there goes on. "
            "[default: runs/<date>-probe-<drafter>]",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option("--prompts", min=1, help="Use so many, evenly spread. [default: all]", show_default=False),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Length limit of the answers; frozen ones are cut to it. [default: as stored; 512 for new answers]",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[DtypeName, typer.Option(help="Hidden states between the services.")] = DtypeName.BFLOAT16,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Texts in flight at the drafter service.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the resampling and of the noise.")] = 0,
    fail_on_finding: Annotated[
        bool, typer.Option("--fail-on-finding", help="Exit with 7 when something is found.")
    ] = False,
    template_kwargs: TemplateKwargs = "{}",
    target: TargetUrl = TARGET_DEFAULT,
    drafter_url: DrafterUrl = DRAFTER_DEFAULT,
    key: Key = None,
) -> None:
    """Find out what is wrong with a drafter: draft under changed conditions and see whether one beats the declared."""
    folder = out if out is not None else Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-probe-{drafter}"
    frozen = frozen_references(texts)
    choice = parse_reference(reference)
    if frozen is not None and choice.kind != "target":
        raise RequestError(f"--reference {reference!r}: {texts} holds answers already; leave it out")
    console = stdout_console()
    failures: tuple[Failure, ...] = ()
    with (
        Addresses(target, drafter_url, key).open_both() as (target_client, drafter_client),
        TerminalProgress() as progress,
    ):
        target_client.info()  # a wrong address is told before anything is made
        drafter_client.card(drafter)
        if frozen is not None:
            references = [cut(one, max_new_tokens) for one in spread(frozen, prompts)]
        else:
            made = answers_to(
                texts,
                prompts,
                choice,
                folder,
                max_new_tokens=max_new_tokens,
                default_limit=DEFAULT_MAX_NEW_TOKENS,
                template_kwargs=parse_template_kwargs(template_kwargs),
                target=target_client,
                progress=progress,
            )
            references, failures = list(made.references), made.failures
        found = probe(
            ProbeSettings(
                drafter=drafter,
                dtype=dtype.value,
                concurrency=concurrency,
                seed=seed,
                passed={
                    "texts": str(texts),
                    "prompts": prompts,
                    "reference": reference,
                    "max_new_tokens": max_new_tokens,
                    "dtype": dtype.value,
                    "seed": seed,
                    "target": target,
                    "drafter_url": drafter_url,
                },
            ),
            references,
            folder,
            target=target_client,
            drafter=drafter_client,
            progress=progress,
        )
    show_probe(found, console)
    if failures or found.failures:
        raise typer.Exit(ExitCode.INCOMPLETE)
    if fail_on_finding and found.verdict.kind == "found":
        raise typer.Exit(ExitCode.FINDING)


probe_command.__doc__ = f"{probe_command.__doc__}\n\n{EXIT_CODES_HELP}"


def show_probe(found: Probe, console: Console) -> None:
    """Print the verdict, the ranked table, and how the states are used."""
    content = found.content
    table = Table(
        title=f"{content['num_texts']} texts, {content['num_anchors']} anchors, "
        f"{content['accepted_as_declared']:.2f} drafts accepted per anchor as declared",
        title_justify="left",
    )
    table.add_column("condition")
    for head in HEADS[1:]:
        table.add_column(head, justify="right")
    for effect in ranked(found.effects, is_suspect=True):
        table.add_row(*map(escape, cells(effect)), style="bold" if effect in found.verdict.findings else None)
    table.add_section()
    for effect in ranked(found.effects, is_suspect=False):
        table.add_row(*map(escape, cells(effect)), style="dim")
    console.print(table)
    for sentence in content["dependence"]["sentences"]:
        console.print(sentence, markup=False, soft_wrap=True)
    for text in content["left_out"]:
        console.print(f"not tried: {text}", markup=False, soft_wrap=True)
    for text in [*found.verdict.notes, *content["warnings"]]:
        console.print(f"[yellow]careful:[/yellow] {escape(text)}", soft_wrap=True)
    console.print(f"[bold]verdict:[/bold] {escape(found.verdict.headline)}", soft_wrap=True)
    for finding in found.verdict.findings[:1]:
        console.print(f"[bold]what to do:[/bold] {escape(finding.condition.advice)}", soft_wrap=True)
    console.print(f"report: {found.path / 'probe.md'}", soft_wrap=True, markup=False)
