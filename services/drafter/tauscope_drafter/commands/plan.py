"""`tauscope-drafter plan`: what drafters would need in each mode, alone and beside the target service."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tauscope_drafter.checkpoint.options import parse_drafter
from tauscope_drafter.commands.extras import require_extra
from tauscope_drafter.commands.sizes import format_bytes, parse_bytes
from tauscope_drafter.placement import GPU_MODES, DrafterSizes, Mode, Placement, Rates, place, seconds
from tauscope_wire.errors import RequestError

_TYPICAL_EMITTED = 6  # tokens a round of a good drafter emits: one anchor in six is visited by a walk


def plan_command(
    *,
    drafter: Annotated[
        list[str], typer.Option("--drafter", metavar="NAME=PATH[,KEY=VALUE..]", help="As for serving; repeatable.")
    ],
    target_model: Annotated[Path, typer.Option(help="Checkpoint folder of the target.")],
    gpu_memory: Annotated[
        str | None, typer.Option(help="Device memory for this service, e.g. 2.5GiB; none: no GPU.")
    ] = None,
    host_memory: Annotated[str | None, typer.Option(help="Host memory that may be used, e.g. 200GiB.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Length of a sample; all its positions are anchors.")] = 2048,
    bus_gb_s: Annotated[float, typer.Option(min=0.1, help="Pinned host to device; 22 is PCIe 4.")] = 22.0,
    gpu_tflops: Annotated[float, typer.Option(min=0.1, help="BF16 matrix products of the GPU.")] = 150.0,
    cpu_gflops: Annotated[
        float | None, typer.Option(min=0.1, help="float32 matrix products of the processor; measured if left out.")
    ] = None,
    target_plan: Annotated[
        Path | None,
        typer.Option(help="Output of `tauscope-target plan --json`: then both services are planned on one card."),
    ] = None,
    card_memory: Annotated[
        str | None, typer.Option(help="Device memory that both services may take together; by default --gpu-memory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Say which modes fit, what each takes, and about how long drafting takes. Loads no weights."""
    require_extra()
    from tauscope_drafter.checkpoint.reading import describe
    from tauscope_drafter.checkpoint.sizes import drafter_sizes
    from tauscope_drafter.commands.measure import cpu_flop_s
    from tauscope_drafter.target_weights import TargetFolder

    facts = TargetFolder(target_model).facts
    descriptions = [describe(Path(path), options, facts) for _, path, options in map(parse_drafter, drafter)]
    sizes = drafter_sizes(
        [d for d in descriptions if d.file is not None], head_rows=facts.vocab_size, head_width=facts.hidden_size
    )
    rates = Rates(bus_gb_s * 1e9, gpu_tflops * 1e12, cpu_gflops * 1e9 if cpu_gflops else cpu_flop_s())
    cap = None if gpu_memory is None else parse_bytes(gpu_memory)
    host = None if host_memory is None else parse_bytes(host_memory)
    modes = [_mode(sizes, mode, rates, cap=cap, host=host, tokens=tokens) for mode in (*GPU_MODES, "cpu")]
    report: dict[str, Any] = {
        "drafters": [str(d.path.name) for d in descriptions],
        "sizes": asdict(sizes),
        "rates": asdict(rates),
        "tokens": tokens,
        "modes": modes,
    }
    if target_plan is not None:
        report["both"] = _both(modes, target_plan, parse_bytes(card_memory) if card_memory else cap, host)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        _print(report)
    return 0 if any(mode["fits"] for mode in modes) else 4


def _mode(
    sizes: DrafterSizes, mode: Mode, rates: Rates, *, cap: int | None, host: int | None, tokens: int
) -> dict[str, Any]:
    plan: dict[str, Any] = {"mode": mode, "fits": False, "gpu_bytes": 0, "host_bytes": 0}
    if mode != "cpu" and cap is None:
        return plan | {"why": "no GPU memory was given"}
    found = place(sizes, mode, cap)
    if not isinstance(found, Placement):
        return plan | {"gpu_bytes": found, "why": f"needs {format_bytes(found)} of the device at least"}
    plan |= {"gpu_bytes": found.gpu_bytes, "host_bytes": found.host_bytes}
    if host is not None and found.host_bytes > host:
        return plan | {"why": f"needs {format_bytes(found.host_bytes)} of host memory"}
    walk = tokens // _TYPICAL_EMITTED
    return plan | {
        "fits": True,
        "why": "estimated from matrix and bus rates",
        "all_anchors_s": seconds(sizes, mode, rates, anchors=tokens, placement=found),
        "walk_anchors_s": seconds(sizes, mode, rates, anchors=walk, placement=found),
    }


def _both(modes: list[dict[str, Any]], path: Path, cap: int | None, host: int | None) -> list[dict[str, Any]]:
    """Pairs of modes of the two services that fit together."""
    try:
        target_modes = json.loads(path.read_text())["modes"]
        pairs = [(t, d) for t in target_modes if t["fits"] for d in modes if d["fits"]]
        return [
            {
                "target": t["mode"],
                "drafter": d["mode"],
                "gpu_bytes": t["gpu_bytes"] + d["gpu_bytes"],
                "host_bytes": t["host_bytes"] + d["host_bytes"],
                "fits": t["gpu_bytes"] + d["gpu_bytes"] <= (cap or 0)
                and (host is None or t["host_bytes"] + d["host_bytes"] <= host),
            }
            for t, d in pairs
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"--target-plan {path}: not the output of `tauscope-target plan --json`") from error


def _print(report: dict[str, Any]) -> None:
    for mode in report["modes"]:
        if not mode["fits"]:
            typer.echo(f"{mode['mode']:<14} no: {mode['why']}")
            continue
        typer.echo(
            f"{mode['mode']:<14} yes: GPU {format_bytes(mode['gpu_bytes'])}, host {format_bytes(mode['host_bytes'])}; "
            f"all {report['tokens']} anchors of a sample in about {mode['all_anchors_s']:.3g} s, those of a walk in "
            f"about {mode['walk_anchors_s']:.3g} s"
        )
    for pair in report.get("both", []):
        typer.echo(
            f"together: target {pair['target']}, drafter {pair['drafter']}: {'yes' if pair['fits'] else 'no'}, GPU "
            f"{format_bytes(pair['gpu_bytes'])}, host {format_bytes(pair['host_bytes'])}"
        )
