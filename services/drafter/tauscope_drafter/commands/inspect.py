"""`tauscope-drafter inspect`: what a checkpoint is, without reading its weights."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tauscope_drafter.commands.extras import require_extra
from tauscope_drafter.commands.settings_option import SetOption, options_of
from tauscope_drafter.commands.sizes import format_bytes

_SHOWN = 12


def inspect_command(
    path: Annotated[Path, typer.Argument(help="File or folder of the drafter.")],
    *,
    target_model: Annotated[Path | None, typer.Option(help="Checkpoint folder of the target, to compare with.")] = None,
    setting: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Print family, format, layout, taps, block, rope, windows, vocabulary and tensors of a checkpoint."""
    require_extra()
    from tauscope_drafter.checkpoint.report import inspected
    from tauscope_drafter.target_weights import TargetFolder

    target = None if target_model is None else TargetFolder(target_model).facts
    report = inspected(path, options_of(setting), target)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if report["loadable"] else 3


def _print(report: dict[str, Any]) -> None:
    for name, value in report.items():
        label = name.replace("_", " ")
        if name.endswith("_bytes"):
            typer.echo(f"{label.removesuffix(' bytes'):<18} {format_bytes(value)}")
        elif isinstance(value, list) and value and isinstance(value[0], str):
            typer.echo(f"{label:<18} {value[0]}")
            for item in value[1:_SHOWN]:
                typer.echo(f"{'':<18} {item}")
            if len(value) > _SHOWN:
                typer.echo(f"{'':<18} and {len(value) - _SHOWN} more")
        elif isinstance(value, dict):
            typer.echo(f"{label:<18} {', '.join(f'{k}={v}' for k, v in value.items()) or 'none'}")
        else:
            shown = "none" if value in (None, []) else value
            typer.echo(f"{label:<18} {shown}")
