"""`tauscope-target golden`: capture the states of a few prompts on this machine, for `tauscope parity` on another."""

from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tauscope_target.allocator import prefer_expandable_segments
from tauscope_target.commands.extras import require_extra
from tauscope_target.commands.loading_lines import LoadingLines
from tauscope_target.commands.serve import say
from tauscope_target.commands.sizes import parse_bytes
from tauscope_wire.errors import RequestError
from tauscope_wire.layers import EMBEDDING

if TYPE_CHECKING:
    from tauscope_target.checkpoint import CheckpointFolder


def golden_command(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    out: Annotated[Path, typer.Option(help="File to write, *.safetensors.")],
    *,
    layers: Annotated[str | None, typer.Option(help="Layers to capture, e.g. 1,16,31,46,61; all if left out.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto: the GPU with most free memory.")
    ] = "auto",
    compute_dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="As for serving.")] = "auto",
    weights: Annotated[Literal["auto", "resident", "streamed", "cpu"], typer.Option(help="As for serving.")] = "auto",
    gpu_memory: Annotated[str | None, typer.Option(help="As for serving.")] = None,
    max_duty: Annotated[float | None, typer.Option(min=0.01, max=1, help="As for serving.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="As for serving: a named faster path, repeatable.")] = None,
    allow_reference_kernels: Annotated[
        bool, typer.Option("--allow-reference-kernels", help="Capture a hybrid model without fla kernels.")
    ] = False,
) -> None:
    """Write a golden capture."""
    require_extra()
    prefer_expandable_segments(environ)
    from tauscope_target.checkpoint import open_checkpoint
    from tauscope_target.golden import golden_prompts, write_golden
    from tauscope_target.modes import ModeRequest
    from tauscope_target.startup import EngineSettings, start_engine
    from tauscope_target.tokens import load_tokens

    if not out.parent.is_dir():
        raise RequestError(f"--out {out}: no such folder {out.parent}")
    asked = None if layers is None else _layers(layers, open_checkpoint(model))
    settings = EngineSettings(
        model=model,
        device=device,
        compute_dtype=compute_dtype,
        allow_reference_kernels=allow_reference_kernels,
        options=tuple(option or ()),
        mode=ModeRequest(
            weights=weights, gpu_memory=None if gpu_memory is None else parse_bytes(gpu_memory), max_duty=max_duty
        ),
    )
    engine = start_engine(settings, progress=LoadingLines(say), say=say)
    chosen = asked if asked is not None else list(range(EMBEDDING, engine.facts.deepest_layer + 1))
    prompts = golden_prompts(load_tokens(model), engine.facts.model.vocab_size)
    try:
        write_golden(engine, prompts, out, layers=chosen)
    except OSError as error:
        raise RequestError(f"--out {out}: {error.strerror}") from None
    say(f"wrote {out}: {len(prompts)} prompts, {len(chosen)} layers, {out.stat().st_size / 1e6:.1f} MB")


def _layers(text: str, folder: "CheckpointFolder") -> list[int]:
    """Layers by id, checked before anything is loaded."""
    try:
        chosen = [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(f"--layers {text}: give numbers, for example 1,16,31") from None
    count = folder.text_config.get("num_hidden_layers")
    for index, layer in enumerate(chosen):
        if layer < EMBEDDING or (isinstance(count, int) and layer >= count):
            raise RequestError(f"--layers [{index}]={layer}: the model has {count} decoder layers; -1 is the embedding")
        if layer in chosen[:index]:
            raise RequestError(f"--layers [{index}]={layer}: given twice")
    return chosen
