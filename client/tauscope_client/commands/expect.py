"""`tauscope expect`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tauscope_client.addresses import Addresses
from tauscope_client.commands.options import DRAFTER_DEFAULT, TARGET_DEFAULT, DrafterUrl, Key, TargetUrl
from tauscope_client.exit_codes import EXIT_CODES_HELP
from tauscope_client.expecting import Sampling, expect_acceptance
from tauscope_client.metrics import Interval
from tauscope_client.plain import shown
from tauscope_client.runs.drafter_warnings import grouped
from tauscope_client.runs.files import write_json
from tauscope_client.runs.headline import kind_of_text
from tauscope_client.runs.loading import load_run
from tauscope_client.terminal import TerminalProgress, stdout_console

__all__ = ["expect_command"]


def expect_command(
    run: Annotated[Path, typer.Argument(help="Run folder: its frozen texts are used.")],
    *,
    temperature: Annotated[float, typer.Option("--temperature", "-t", min=0.01, help="Sampling temperature.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from the k best; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0, help="Sample from the smallest set of this mass.")] = 1.0,
    drafter: Annotated[
        list[str] | None, typer.Option("--drafter", "-d", help="Drafters. [default: those of the run]")
    ] = None,
    target: TargetUrl = TARGET_DEFAULT,
    drafter_url: DrafterUrl = DRAFTER_DEFAULT,
    key: Key = None,
) -> None:
    """Expected tau at a temperature above 0, from target and draft distributions along the texts of a run.

    An expectation along given texts, not a count. Sampled text is harder than greedy text: for an expectation along
    text sampled at the same temperature evaluate with `tauscope eval --temperature`.
    """
    loaded = load_run(run)
    names = [loaded.check_drafter(name) for name in drafter or loaded.drafters]
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    with (
        Addresses(target, drafter_url, key).open_both() as (target_client, drafter_client),
        TerminalProgress() as progress,
    ):
        found = expect_acceptance(
            loaded, names, sampling, target=target_client, drafter=drafter_client, progress=progress
        )
    value: dict[str, Any] = {"schema": "tauscope.expectation/1", "sampling": vars(sampling)}
    path = run / f"expected-t{temperature:g}-k{top_k}-p{top_p:g}.json"
    write_json(path, value | {"drafters": {one.drafter: one.to_dict() for one in found}})
    table = Table(title=f"expected tau at temperature {temperature:g}", title_justify="left")
    table.add_column("drafter")
    for head in ("sampled drafts", "greedy drafts", "tau along the text"):
        table.add_column(head, justify="right")
    for one in found:
        greedy = loaded.results["drafters"][one.drafter]["overall"]["values"]["tau"]
        tau = "–" if greedy is None else f"{greedy:.3f}"
        table.add_row(shown(one.drafter), _cell(one.sampled), _cell(one.greedy), tau)
    console = stdout_console()
    console.print(table)
    console.print(
        "sampled drafts: each is accepted with chance sum min(p, q); greedy drafts: with chance p of the best token. "
        f"An expectation along the run's texts ({kind_of_text(loaded.results)}), not a count.",
        markup=False,
        soft_wrap=True,
    )
    for line in grouped((one.drafter, warning) for one in found for warning in one.warnings):
        console.print(f"[yellow]careful:[/yellow] {shown(line)}", soft_wrap=True)
    console.print(str(path), markup=False, soft_wrap=True)


expect_command.__doc__ = f"{expect_command.__doc__}\n\n{EXIT_CODES_HELP}"


def _cell(interval: Interval) -> str:
    if interval.estimate is None:
        return "–"
    ends = "" if interval.low is None or interval.high is None else f" ({interval.low:.2f} to {interval.high:.2f})"
    return f"{interval.estimate:.3f}{ends}"
