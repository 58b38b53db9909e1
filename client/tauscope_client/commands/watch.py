"""`tauscope watch`."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tauscope_client.addresses import Addresses
from tauscope_client.commands.eval import DEFAULT_MAX_NEW_TOKENS, DEFAULT_TAIL_TOKENS
from tauscope_client.commands.options import (
    DRAFTER_DEFAULT,
    TARGET_DEFAULT,
    DrafterUrl,
    Key,
    TargetUrl,
    TemplateKwargs,
    TrainedThinking,
    parse_template_kwargs,
)
from tauscope_client.evaluate import EvalSettings
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode
from tauscope_client.freezing import freeze
from tauscope_client.plain import shown
from tauscope_client.prompts import load_prompts
from tauscope_client.references.choice import REFERENCE_HELP, parse_reference
from tauscope_client.references.collect import ReferencePlan
from tauscope_client.references.stored import StoredSource
from tauscope_client.report.curve import curve_page
from tauscope_client.runs.files import write_text
from tauscope_client.terminal import TerminalProgress, stdout_console
from tauscope_client.tree_rows import parse_budgets
from tauscope_client.watch.leaderboard import Entry
from tauscope_client.watch.watching import Watch, WatchSettings
from tauscope_wire.errors import RequestError

__all__ = ["watch_command"]


def watch_command(
    folder: Annotated[Path, typer.Argument(help="Folder in which checkpoints appear.")],
    *,
    prompts: Annotated[Path, typer.Option("--prompts", "-p", help="Prompts to evaluate on.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs and the leaderboard; continued.")],
    reference: Annotated[str, typer.Option("--reference", "-r", help=REFERENCE_HELP)] = "target",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="KEY=VALUE that the checkpoints do not say, e.g. block_size=16, taps=[1,16,31]."),
    ] = None,
    service_folder: Annotated[
        str | None, typer.Option(help="The same folder as the drafter service sees it. [default: the same path]")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of the answers.")] = DEFAULT_MAX_NEW_TOKENS,
    tree_budgets: Annotated[str, typer.Option(help="DDTree budgets, e.g. 16,64, or none.")] = "none",
    poll_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="Evaluate what is there now, then end.")] = False,
    template_kwargs: TemplateKwargs = "{}",
    trained_thinking: TrainedThinking = None,
    target: TargetUrl = TARGET_DEFAULT,
    drafter_url: DrafterUrl = DRAFTER_DEFAULT,
    key: Key = None,
) -> None:
    """Evaluate every new checkpoint through the drafter service, and keep a leaderboard and the tau curve over steps.

    The drafter service must be allowed to load from the folder (tauscope-drafter --root FOLDER).
    """
    file = load_prompts(prompts)
    kwargs = parse_template_kwargs(template_kwargs)
    choice = parse_reference(reference)
    frozen = Path(choice.value) if choice.kind == "file" else out / "references.jsonl"
    limit = StoredSource(frozen).max_new_tokens() if choice.kind == "file" else max_new_tokens
    plan = ReferencePlan(max_new_tokens=limit, tail_tokens=DEFAULT_TAIL_TOKENS, template_kwargs=kwargs)
    console = stdout_console()
    num_failed = 0
    with (
        Addresses(target, drafter_url, key).open_both() as (target_client, drafter_client),
        TerminalProgress() as progress,
    ):
        target_client.info()
        if choice.kind != "file":
            with choice.open(target_client) as source:
                freeze(file, plan, frozen, target=target_client, source=source, progress=progress)
        watch = Watch(
            WatchSettings(
                folder=folder,
                out=out,
                service_folder=service_folder,
                options=_options(option or []),
                evaluation=EvalSettings(
                    drafters=(),
                    references=plan,
                    tree_budgets=parse_budgets(tree_budgets),
                    trained_thinking=None if trained_thinking is None else trained_thinking.value,
                    passed={"watch": str(folder), "prompts": str(prompts), "reference": reference},
                ),
                poll_s=poll_s,
            ),
            file,
            target=target_client,
            drafter=drafter_client,
            references=frozen,
            progress=progress,
            sleep=time.sleep,
        )
        for entry in watch.run(once=once):
            num_failed += bool(entry.failure)
            write_text(out / "curve.html", curve_page(watch.entries))
            console.print(_table(watch.entries, newest=entry.name))
    if once and num_failed:
        raise typer.Exit(ExitCode.INCOMPLETE)


watch_command.__doc__ = f"{watch_command.__doc__}\n\n{EXIT_CODES_HELP}"


def _options(given: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise RequestError(f"--option {text!r}: expected KEY=VALUE, e.g. block_size=16")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def _table(entries: list[Entry], *, newest: str) -> Table:
    table = Table(title="leaderboard", title_justify="left")
    for head in ("checkpoint", "step", "tau", "95 % interval", "against the best before it"):
        table.add_column(head)
    for entry in sorted(entries, key=lambda one: (one.tau is None, -(one.tau or 0.0))):
        ends = "–" if entry.low is None or entry.high is None else f"{entry.low:.2f} to {entry.high:.2f}"
        table.add_row(
            shown(entry.name),
            "–" if entry.step is None else str(entry.step),
            "–" if entry.tau is None else f"{entry.tau:.3f}",
            ends,
            shown(entry.failure or entry.against_best),
            style="bold" if entry.name == newest else None,
        )
    return table
