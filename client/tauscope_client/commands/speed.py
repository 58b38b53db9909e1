"""`tauscope speed`."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tauscope_client.addresses import Addresses
from tauscope_client.commands.options import DRAFTER_DEFAULT, TARGET_DEFAULT, DrafterUrl, Key, TargetUrl
from tauscope_client.costs import Cost, assumed, draft_cost, given, step_cost
from tauscope_client.exit_codes import EXIT_CODES_HELP
from tauscope_client.pairing import check_run
from tauscope_client.plain import shown
from tauscope_client.references.choice import parse_reference
from tauscope_client.report.estimates import SPEED_FILE
from tauscope_client.runs.files import write_json
from tauscope_client.runs.loading import Run, load_run
from tauscope_client.speed_estimates import SpeedEstimates, estimate_speeds
from tauscope_client.terminal import stdout_console

__all__ = ["speed_command"]


def speed_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    *,
    target_ms: Annotated[
        float | None,
        typer.Option(help="One plain decoding step of the target, in milliseconds. [default: measured]"),
    ] = None,
    draft_ms: Annotated[
        float | None, typer.Option(help="One block drafted, in milliseconds. [default: measured]")
    ] = None,
    verify_ms: Annotated[
        float | None, typer.Option(help="One verification, in milliseconds. [default: as much as a plain step]")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            "-r",
            help="Server whose step is timed: sglang=URL, openai=URL, target. [default: that of the run]",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Drafts to time, one at a time.")] = 32,
    texts: Annotated[int, typer.Option(min=1, max=100, help="Prompts to time the target's step on.")] = 4,
    step_tokens: Annotated[int, typer.Option(min=2, max=2048, help="Tokens of each of those answers.")] = 64,
    reference_model: Annotated[str | None, typer.Option(help="Model name at a server that serves several.")] = None,
    reference_key: Annotated[
        str | None, typer.Option(envvar="TAUSCOPE_REFERENCE_KEY", help="API key of the reference server.")
    ] = None,
    target: TargetUrl = TARGET_DEFAULT,
    drafter_url: DrafterUrl = DRAFTER_DEFAULT,
    key: Key = None,
) -> None:
    """Estimate the speed-up over plain decoding at batch size 1 from tau and from costs, measured now or given.

    A cost that is not given is measured: a draft by the drafter service, a step at the reference server, which must
    not speculate. A verification is not measured; it is taken for as dear as a plain step unless --verify-ms is given.

    Kept as speed.json in the run, where the report finds it.

    Acceptance is not speed: scheduling, sampling and batching with other requests are left out.
    """
    loaded = load_run(run)
    server = reference if reference is not None else loaded.manifest.settings_passed.get("reference") or "target"
    with ExitStack() as stack:
        drafts, step = _costs(
            loaded,
            stack,
            Addresses(target, drafter_url, key),
            target_ms=target_ms,
            draft_ms=draft_ms,
            reference=server,
            access=(reference_model, reference_key),
            sizes=(rounds, texts, step_tokens),
        )
    verification = assumed(step.ms) if verify_ms is None else given(verify_ms, "--verify-ms")
    found = estimate_speeds(loaded, drafts, step=step, verification=verification)
    write_json(run / SPEED_FILE, found.to_dict())
    _show(found)


speed_command.__doc__ = f"{speed_command.__doc__}\n\n{EXIT_CODES_HELP}"


def _costs(
    run: Run,
    stack: ExitStack,
    addresses: Addresses,
    *,
    target_ms: float | None,
    draft_ms: float | None,
    reference: str,
    access: tuple[str | None, str | None],
    sizes: tuple[int, int, int],
) -> tuple[dict[str, Cost], Cost]:
    """Costs of the drafters' drafts and of the target's step; services are asked only for what is not given."""
    drafts = {} if draft_ms is None else dict.fromkeys(run.drafters, given(draft_ms, "--draft-ms"))
    step = None if target_ms is None else given(target_ms, "--target-ms")
    if drafts and step is not None:
        return drafts, step
    rounds, texts, step_tokens = sizes
    if step is None:
        model, key = access
        choice = parse_reference(reference, model=model, key=key)
        client = stack.enter_context(addresses.open_target())
        source = stack.enter_context(choice.open(client))
        step = step_cost(run, source, target=client, num_tokens=step_tokens, num_texts=texts, clock=time.perf_counter)
    if not drafts:
        client, drafter = stack.enter_context(addresses.open_both())
        drafts = {
            card.name: draft_cost(run, card, target=client, drafter=drafter, num_rounds=rounds)
            for card in check_run(run, run.drafters, target=client, drafter=drafter)
        }
    return drafts, step


def _show(found: SpeedEstimates) -> None:
    console = stdout_console()
    table = Table(title=shown(f"estimated speed-up over plain decoding, {found.holds}"), title_justify="left")
    for head in ("drafter", "tau", "one draft", "speed-up", "95 % of tau", "pays off above tau"):
        table.add_column(head, justify="left" if head == "drafter" else "right")
    bound = "below " if found.is_upper_bound else ""
    for name, one in found.drafters.items():
        estimate = one.estimate
        ends = "–" if estimate.low is None or estimate.high is None else f"{estimate.low:.2f} to {estimate.high:.2f}"
        table.add_row(
            shown(name),
            "–" if one.tau.estimate is None else f"{one.tau.estimate:.3f}",
            f"{one.draft.ms:.3g} ms",
            "–" if estimate.speed_up is None else f"{bound}{estimate.speed_up:.2f}",
            ends,
            f"{estimate.break_even_tau:.2f}",
        )
    console.print(table)
    lines = [
        "an estimate: tau x target step / (draft + verification), at batch size 1, without scheduling and sampling",
        f"target step: {found.step.ms:.3g} ms, {found.step.words}",
        *dict.fromkeys(f"draft: {one.draft.words}" for one in found.drafters.values()),
        f"verification: {found.verification.ms:.3g} ms, {found.verification.words}",
    ]
    for line in lines:
        console.print(shown(line), soft_wrap=True)
    for caution in found.cautions:
        console.print(f"[yellow]careful:[/yellow] {shown(caution)}", soft_wrap=True)
