"""`tauscope doctor`."""

import typer

from tauscope_client.addresses import TUNNEL, Addresses
from tauscope_client.commands.options import DRAFTER_DEFAULT, TARGET_DEFAULT, DrafterUrl, Key, TargetUrl
from tauscope_client.doctor import examine
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode, exit_code_of
from tauscope_client.plain import shown
from tauscope_client.terminal import stdout_console

__all__ = ["doctor_command"]

_MARKS = {"ok": "[green]ok[/green]     ", "note": "[yellow]note[/yellow]   ", "problem": "[red]problem[/red]"}


def doctor_command(
    target: TargetUrl = TARGET_DEFAULT, drafter_url: DrafterUrl = DRAFTER_DEFAULT, key: Key = None
) -> None:
    """Check both services, their versions, layer ids and numerics, and say what to do."""
    console = stdout_console()
    code = ExitCode.OK
    with Addresses(target, drafter_url, key).open_both() as (target_client, drafter_client):
        for finding in examine(target_client, drafter_client):
            console.print(f"{_MARKS[finding.level]} {shown(finding.text)}", soft_wrap=True)
            if finding.advice:
                console.print(f"        {shown(finding.advice)}", soft_wrap=True)
            if finding.level == "problem" and code is ExitCode.OK:
                code = exit_code_of(finding.error) if finding.error is not None else ExitCode.FAILED
    if code is not ExitCode.OK:
        raise typer.Exit(code)
    console.print("all well", markup=False)


doctor_command.__doc__ = (
    f"{doctor_command.__doc__}\n\nServices on loopback of another machine are reached through one tunnel:\n\n"
    f"    {TUNNEL}\n\n{EXIT_CODES_HELP}"
)
