"""`tauscope-target`: load a model, prove it, serve it."""

from contextlib import closing
from os import W_OK, X_OK, access, environ
from pathlib import Path
from typing import Annotated, Literal

import typer

from tauscope_serving.options import (
    HostOption,
    KeysOption,
    LogLevelOption,
    MaxQueuedOption,
    OpenOption,
    PortOption,
    TlsCertOption,
    TlsKeyOption,
    UdsOption,
)
from tauscope_target.allocator import prefer_expandable_segments
from tauscope_target.commands.extras import require_extra
from tauscope_target.commands.loading_lines import LoadingLines
from tauscope_target.commands.sizes import parse_bytes
from tauscope_wire.errors import RequestError
from tauscope_wire.tracing import active_tracing

STREAMED_WAIT_MS = 50.0
"""A streamed pass takes a second or more whatever it holds: company is worth a short wait."""


def serve_command(
    context: typer.Context,
    *,
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint folder (safetensors) to serve.", show_default=False)
    ] = None,
    model_id: Annotated[str | None, typer.Option(help="Name in answers; the folder's name if left out.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto: the GPU with most free memory.")
    ] = "auto",
    devices: Annotated[
        str | None, typer.Option(help="GPUs that a resident model is spread over, e.g. 0,1; one GPU if left out.")
    ] = None,
    compute_dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="auto: float32 on a CPU, the checkpoint's on a GPU."),
    ] = "auto",
    allow_reference_kernels: Annotated[
        bool,
        typer.Option(
            "--allow-reference-kernels",
            help="Serve a hybrid model without fla kernels; every answer says so.",
        ),
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Named faster path, repeatable: fused, fla-convolution. Enters the fingerprint."),
    ] = None,
    deepest_layer: Annotated[
        int | None, typer.Option(min=0, help="Last layer that may be asked; what is above is not loaded.")
    ] = None,
    head: Annotated[bool, typer.Option("--head/--no-head", help="Load final norm and head.")] = True,
    chunk_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens a layer computes at once.")] = None,
    weights: Annotated[
        Literal["auto", "resident", "streamed", "cpu"],
        typer.Option(help="How weights are held: on the GPU, streamed through it layer by layer, or in host memory."),
    ] = "auto",
    gpu_memory: Annotated[
        str | None,
        typer.Option(help="Most memory this process takes on the GPU, e.g. 2.5GiB; all that is free if not given."),
    ] = None,
    max_duty: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="Share of the time that layers run; 0.13 on a GPU that is in use, else 1."),
    ] = None,
    pass_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a pass, padding included; what fits, up to 16384, if left out.")
    ] = None,
    max_wait_ms: Annotated[
        float | None, typer.Option(min=0, help="How long a request waits for company; 50 when streamed, else 0.")
    ] = None,
    store_memory: Annotated[str, typer.Option(help="Memory for handles.")] = "4GiB",
    store_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keep that memory as private files in this folder (under /dev/shm), which a drafter service on this "
            "machine maps without copying; `auto` makes a folder."
        ),
    ] = None,
    spill_dir: Annotated[
        Path | None, typer.Option(help="Folder that keeps handles beyond memory and restarts; none by default.")
    ] = None,
    spill_space: Annotated[str, typer.Option(help="Most bytes in that folder.")] = "64GiB",
    ttl_s: Annotated[float, typer.Option(min=1, help="How long a handle may live, in seconds.")] = 3600.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest sequence.")] = 32768,
    max_layers: Annotated[int, typer.Option(min=1, help="Most layers of one request.")] = 64,
    max_answer: Annotated[str, typer.Option(help="Largest answer.")] = "4GiB",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest generation.")] = 8192,
    max_queued: MaxQueuedOption = 256,
    host: HostOption = "127.0.0.1",
    port: PortOption = 30010,
    uds: UdsOption = None,
    keys: KeysOption = None,
    open_to_network: OpenOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    log_level: LogLevelOption = "info",
) -> None:
    """Serve a model's hidden layers until SIGTERM; runs when no other command is given."""
    if context.invoked_subcommand is not None:
        return
    if model is None:
        raise RequestError("nothing to serve: give --model DIR, a checkpoint folder")
    prefer_expandable_segments(environ)
    require_extra()
    from tauscope_serving.keys import Keyring
    from tauscope_serving.logs import set_up_logs
    from tauscope_serving.server import bind, check_exposure, serve, url_of
    from tauscope_serving.service import Access
    from tauscope_serving.settings import ServingSettings
    from tauscope_target.app import create_app
    from tauscope_target.gpu_meter import gpu_meter
    from tauscope_target.modes import ModeRequest
    from tauscope_target.settings import DEFAULT_LIMITS, TargetSettings
    from tauscope_target.startup import EngineSettings, start_engine
    from tauscope_target.tokens import load_tokens

    serving = ServingSettings(
        host=host,
        port=port,
        uds=uds,
        keys_file=keys,
        open_to_network=open_to_network,
        tls_cert=tls_cert,
        tls_key=tls_key,
        limits=DEFAULT_LIMITS.model_copy(
            update={
                "max_tokens": max_tokens,
                "max_layers": max_layers,
                "max_answer_bytes": parse_bytes(max_answer),
                "max_new_tokens": max_new_tokens,
                "max_queued": max_queued,
            }
        ),
    )
    gpu_bytes = None if gpu_memory is None else parse_bytes(gpu_memory)
    store_bytes, spill_bytes = parse_bytes(store_memory), parse_bytes(spill_space)
    check_exposure(serving)
    set_up_logs(log_level)
    _quiet_transformers()
    _check_folder("--spill-dir", spill_dir)
    tokens = load_tokens(model) if model.is_dir() else None  # what is wrong shows before weights are read
    with closing(bind(serving)) as listener:
        engine = start_engine(
            EngineSettings(
                model=model,
                device=device,
                compute_dtype=compute_dtype,
                model_id=model_id,
                allow_reference_kernels=allow_reference_kernels,
                deepest_layer=deepest_layer,
                with_head=head,
                devices=_numbers(devices),
                options=tuple(option or ()),
                mode=ModeRequest(
                    weights=weights,
                    gpu_memory=gpu_bytes,
                    pass_tokens=pass_tokens,
                    chunk_tokens=chunk_tokens,
                    max_duty=max_duty,
                ),
            ),
            progress=LoadingLines(say),
            say=say,
        )
        for test in engine.facts.self_tests:
            say(f"self-test {test.name}: {test.status} ({test.detail})")
        if engine.facts.numerics.reference_kernels:
            say("warning: reference kernels for linear attention; drafters trained on fla kernels may look worse here")
        is_streamed = engine.facts.mode == "streamed"
        wait_ms = max_wait_ms if max_wait_ms is not None else (STREAMED_WAIT_MS if is_streamed else 0.0)
        settings = TargetSettings(
            serving=serving,
            pass_tokens=pass_tokens,
            max_wait_s=wait_ms / 1e3,
            gather_tokens=engine.facts.pass_tokens if wait_ms else 0,
            store_bytes=store_bytes,
            store_dir="auto" if store_dir == Path("auto") else store_dir,
            ttl_s=ttl_s,
            spill_dir=spill_dir,
            spill_bytes=spill_bytes,
        )
        url = url_of(listener, tls=tls_cert is not None)
        serve(
            create_app(
                engine,
                tokens,
                settings,
                access=Access(keyring=Keyring(keys)),
                gpu_memory=gpu_meter(engine.devices, cap_bytes=gpu_bytes),
                tracing=active_tracing(),
            ),
            serving,
            listener=listener,
            started=lambda: say(f"tauscope-target is ready at {url}"),
        )


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise RequestError(f"--devices {text}: give numbers, for example 0,1") from None


def _check_folder(option: str, path: Path | None) -> None:
    """Find out before weights are read whether a folder can be used."""
    if path is None:
        return
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{option} {path}: {error.strerror}; give a folder that can be written") from None
    if not access(path, W_OK | X_OK):
        raise RequestError(f"{option} {path}: it cannot be written; give another folder")


def _quiet_transformers() -> None:
    """Its warnings about missing kernels are wrong where the GPU kernels are kept out on purpose; ours say what ran."""
    from transformers.utils import logging

    logging.set_verbosity_error()


def say(line: str) -> None:
    """One line on standard error."""
    typer.echo(line, err=True)
