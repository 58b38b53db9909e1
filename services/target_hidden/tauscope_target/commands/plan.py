"""`tauscope-target plan`: what a checkpoint would need in each mode. Reads headers and the configuration only."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tauscope_target.commands.sizes import parse_bytes
from tauscope_wire.errors import CheckpointError, ErrorCode, RequestError

if TYPE_CHECKING:
    from tauscope_target.plan import ModePlan

GIB = 1 << 30


def plan_command(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    *,
    gpu_memory: Annotated[
        str | None, typer.Option(help="GPU memory that may be used, e.g. 2.5GiB; none: no GPU.")
    ] = None,
    host_memory: Annotated[str | None, typer.Option(help="Host memory that may be used, e.g. 200GiB.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers that will be asked for, e.g. 1,16,31,46,61.")] = None,
    deepest_layer: Annotated[int | None, typer.Option(min=0, help="As the service would be started with.")] = None,
    head: Annotated[bool, typer.Option("--head/--no-head", help="Whether the head is loaded.")] = True,
    bus_gb_s: Annotated[
        float, typer.Option(min=0.1, help="Pinned host to device; 55 on one H200, 22 on PCIe 4.")
    ] = 22.0,
    gpu_tflops: Annotated[float, typer.Option(min=0.1, help="BF16 matrix products of the GPU.")] = 150.0,
    cpu_gflops: Annotated[float, typer.Option(min=0.1, help="float32 matrix products of the processor.")] = 500.0,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the three rates, and what is free, on this machine (needs torch)."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say which modes fit, why others do not, and how fast each would be."""
    from tauscope_target.checkpoint import open_checkpoint
    from tauscope_target.plan import Limits, Rates, answer_bytes_per_token, plan_modes
    from tauscope_target.sizes import model_sizes

    folder = open_checkpoint(model)
    config = folder.text_config
    for field in ("hidden_size", "vocab_size", "num_hidden_layers"):
        if field not in config:
            raise CheckpointError(f"{model}/config.json lacks {field}", ErrorCode.CONFIG_INCOMPLETE)
    taps = _taps(layers, int(config["num_hidden_layers"]))
    sizes = model_sizes(
        folder, config, itemsize=2, deepest_layer=deepest_layer, with_head=head and deepest_layer is None
    )
    limits = Limits(
        None if gpu_memory is None else parse_bytes(gpu_memory),
        None if host_memory is None else parse_bytes(host_memory),
    )
    rates = Rates(bus_gb_s * 1e9, gpu_tflops * 1e12, cpu_gflops * 1e9)
    if measure:
        from tauscope_target.commands.extras import require_extra

        require_extra()
        from tauscope_target.rates import measure_machine

        limits, rates = measure_machine(limits)
    deepest = max(taps, default=sizes.num_layers - 1)
    plans = plan_modes(sizes, limits, rates, deepest_layer=max(deepest, 0))
    per_token = answer_bytes_per_token(sizes, max(1, len(taps)))
    if as_json:
        report = {
            "model": model.resolve().name,
            "weights_bytes": sizes.weights_bytes,
            "answer_bytes_per_token": per_token,
            "rates": asdict(rates),
            "modes": [asdict(plan) for plan in plans],
        }
        typer.echo(json.dumps(report, indent=1))
        return
    typer.echo(
        f"{model.resolve().name}: {sizes.num_layers} layers, hidden {sizes.hidden}, {_size(sizes.weights_bytes)} of "
        f"text weights in BF16; an answer takes {per_token / 1e3:.1f} kB a token for {max(1, len(taps))} layers"
    )
    for plan in plans:
        typer.echo(f"  {plan.mode:<9} {_line(plan)}")
    if not any(plan.fits for plan in plans):
        raise typer.Exit(4)


def _line(plan: "ModePlan") -> str:
    if not plan.fits:
        return f"no: {plan.why}"
    longest = "" if plan.longest_tokens is None else f", prompts up to {plan.longest_tokens}"
    chunks = f" in chunks of {plan.chunk_tokens}" if 0 < plan.chunk_tokens < plan.pass_tokens else ""
    return (
        f"yes: GPU {_size(plan.gpu_bytes)}, host {_size(plan.host_bytes)} ({_size(plan.pinned_bytes)} pinned), passes "
        f"of {plan.pass_tokens} tokens{chunks}{longest}; about {plan.s_per_1k_tokens:.2f} s per 1k tokens, "
        f"{plan.s_per_small_pass:.2f} s for a short prompt alone; {plan.why}"
    )


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB or count == 0 else f"{count / (1 << 20):.0f} MiB"


def _taps(text: str | None, num_layers: int) -> list[int]:
    if text is None:
        return []
    try:
        taps = [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(f"--layers {text}: give numbers, for example 1,16,31") from None
    for tap in taps:
        if not -1 <= tap < num_layers:
            raise RequestError(f"--layers {tap}: the model has {num_layers} decoder layers (0..{num_layers - 1})")
    return taps
