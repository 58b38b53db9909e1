"""`tauscope speed`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tauscope_client.exit_codes import EXIT_CODES_HELP
from tauscope_client.metrics import estimate_speed, intervals_of
from tauscope_client.plain import shown
from tauscope_client.report.estimates import SPEED_FILE
from tauscope_client.runs.files import write_json
from tauscope_client.runs.headline import headline_name
from tauscope_client.runs.loading import load_run
from tauscope_client.terminal import stdout_console
from tauscope_wire.errors import RequestError

__all__ = ["speed_command"]


def speed_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    *,
    target_ms: Annotated[float, typer.Option(help="One plain decoding step of the target, in milliseconds.")],
    draft_ms: Annotated[float, typer.Option(help="One block drafted, in milliseconds.")],
    verify_ms: Annotated[
        float | None, typer.Option(help="One verification, in milliseconds. [default: as much as a plain step]")
    ] = None,
) -> None:
    """Estimate the speed-up over plain decoding at batch size 1 from tau and costs that you measured.

    Kept as speed.json in the run, where the report finds it.

    Acceptance is not speed: scheduling, sampling and batching with other requests are left out.
    """
    loaded = load_run(run)
    headline = headline_name(loaded.results)
    console = stdout_console()
    table = Table(title="estimated speed-up over plain decoding", title_justify="left")
    for head in ("drafter", "tau", "speed-up", "95 % of tau", "pays off above tau"):
        table.add_column(head, justify="left" if head == "drafter" else "right")
    kept: dict[str, Any] = {}
    for name in loaded.drafters:
        tau = intervals_of(loaded.measured(name), [headline])[headline]
        try:
            found = estimate_speed(tau, draft_cost_ms=draft_ms, target_cost_ms=target_ms, verify_cost_ms=verify_ms)
        except ValueError as error:
            raise RequestError(str(error)) from error
        kept[name] = {"tau": tau.estimate, "speed_up": found.speed_up, "low": found.low, "high": found.high}
        ends = "–" if found.low is None or found.high is None else f"{found.low:.2f} to {found.high:.2f}"
        table.add_row(
            shown(name),
            "–" if tau.estimate is None else f"{tau.estimate:.3f}",
            "–" if found.speed_up is None else f"{found.speed_up:.2f}",
            ends,
            f"{found.break_even_tau:.2f}",
        )
    costs = {"target step": target_ms, "draft": draft_ms, "verification": target_ms if verify_ms is None else verify_ms}
    write_json(
        run / SPEED_FILE,
        {"schema": "tauscope.speed/1", "is_estimate": True, "statistic": headline, "costs_ms": costs, "drafters": kept},
    )
    console.print(table)
    console.print(
        "an estimate: tau x target step / (draft + verification), at batch size 1, without scheduling and sampling",
        markup=False,
        soft_wrap=True,
    )


speed_command.__doc__ = f"{speed_command.__doc__}\n\n{EXIT_CODES_HELP}"
