"""`tauscope-drafter`: load drafters and serve them."""

import os
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tauscope_drafter.checkpoint.options import parse_drafter
from tauscope_drafter.commands.extras import require_extra
from tauscope_drafter.commands.sizes import parse_bytes
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
from tauscope_wire.errors import RequestError
from tauscope_wire.tracing import active_tracing

if TYPE_CHECKING:
    from tauscope_wire.connection import Connection

TARGET_KEY_VARIABLE = "TAUSCOPE_TARGET_KEY"
"""API key for the target service; in the environment, because command lines are visible to everybody."""

DrafterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="NAME=PATH[,KEY=VALUE..]",
        help="A drafter to load, repeatable. Keys fill what the files do not say, e.g. "
        "early=run/checkpoint.pt,block_size=16,taps=1:16:31:46:61,mask_token_id=248070,rope_theta=1e7",
    ),
]


def serve_command(
    context: typer.Context,
    *,
    target_url: Annotated[
        str | None, typer.Option(help="Target service that handles of hidden states are read from.")
    ] = None,
    map_states: Annotated[
        bool,
        typer.Option(
            "--map-states/--no-map-states",
            help="Map the files in which a target service on this machine keeps states (its --store-dir); else, and "
            "without them, states come over HTTP.",
        ),
    ] = True,
    target_model: Annotated[
        Path | None,
        typer.Option(help="Checkpoint folder of the target: embedding and head are read from it, and shared."),
    ] = None,
    drafter: DrafterOption = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto (cuda if there is one).")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16; auto is float32 on a CPU.")] = "auto",
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            help="Most device memory of this process, CUDA context included, e.g. 2.5GiB; weights are streamed "
            "from host memory as far as they do not fit."
        ),
    ] = None,
    drafter_memory: Annotated[
        str | None, typer.Option(help="Bound on the memory of all drafters together, e.g. 12GiB.")
    ] = None,
    context_memory: Annotated[str, typer.Option(help="Bound on the fused contexts that are kept.")] = "256MiB",
    batch_memory: Annotated[str | None, typer.Option(help="Bound on the activations of one batch of anchors.")] = None,
    logits_memory: Annotated[
        str | None, typer.Option(help="Bound on the logits that exist at a time; by default 256MiB, 3GiB on a GPU.")
    ] = None,
    head_on_host: Annotated[
        bool, typer.Option("--head-on-host", help="Keep the head in host memory and stream it to the GPU.")
    ] = False,
    strict_numerics: Annotated[
        bool,
        typer.Option(
            "--strict-numerics", help="Refuse states unlike those a drafter was trained on, instead of warning."
        ),
    ] = False,
    root: Annotated[
        list[Path] | None,
        typer.Option(help="Folder that POST /drafters may load from, repeatable. Without one it loads nothing."),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 30020,
    uds: UdsOption = None,
    keys: KeysOption = None,
    open_to_network: OpenOption = False,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longest sequence.")] = 262144,
    max_anchors: Annotated[int, typer.Option(min=1, help="Most anchors of one request.")] = 16384,
    max_top_k: Annotated[int, typer.Option(min=1, max=1024, help="Most candidates per row.")] = 1024,
    max_queued: MaxQueuedOption = 256,
    log_level: LogLevelOption = "info",
) -> None:
    """Serve drafters until SIGTERM; runs when no other command is given."""
    if context.invoked_subcommand is not None:
        return
    if not drafter and not root:
        raise RequestError("nothing to serve: give --drafter NAME=PATH, or --root DIR to load drafters over HTTP")
    require_extra()
    from tauscope_drafter.app import DrafterService, create_app
    from tauscope_drafter.commands.devices import choose_device, choose_dtype
    from tauscope_drafter.commands.gpu_cap import place_on_gpu
    from tauscope_drafter.engine import Engine
    from tauscope_drafter.gpu_meter import gpu_meter
    from tauscope_drafter.loading import open_place
    from tauscope_drafter.states import StatesSource
    from tauscope_serving.keys import Keyring
    from tauscope_serving.logs import set_up_logs
    from tauscope_serving.server import bind, check_exposure, serve, url_of
    from tauscope_serving.service import Access
    from tauscope_serving.settings import ServingSettings
    from tauscope_wire.messages import Limits

    drafters = [parse_drafter(text) for text in drafter or ()]
    settings = ServingSettings(
        host=host,
        port=port,
        uds=uds,
        keys_file=keys,
        open_to_network=open_to_network,
        tls_cert=tls_cert,
        tls_key=tls_key,
        limits=Limits(
            max_body_bytes=2 << 30,  # inline states of a long sequence; by handle a request is a few megabytes
            max_tokens=max_tokens,
            max_anchors=max_anchors,
            max_top_k=max_top_k,
            max_answer_bytes=1 << 30,  # 8,000 anchors of a block of 16 at top-1024
            max_queued=max_queued,
            default_deadline_s=600.0,
            max_deadline_s=3600.0,
        ),
    )
    check_exposure(settings)
    set_up_logs(log_level)
    with closing(bind(settings)) as listener:
        where = choose_device(device)
        gpu_bytes = _bytes(gpu_memory, None)
        placed = None
        if gpu_bytes is not None and where.type == "cuda":
            placed = place_on_gpu(drafters, target_model, gpu_bytes, where)
            typer.echo(f"weights: {placed.mode}, about {placed.gpu_bytes / 1e9:.2f} GB of the device", err=True)
        place = open_place(
            where,
            choose_dtype(dtype, where),
            target_model,
            chunk_bytes=_bytes(logits_memory, None if placed is None else placed.logits_bytes),
            head_on_host=head_on_host or (placed is not None and placed.mode != "resident"),
            stream_networks=placed is not None and placed.mode == "streamed",
        )
        states = StatesSource(_connection(target_url, os.environ), mapping=map_states)
        engine = Engine(
            place,
            strict_numerics=strict_numerics,
            probe_source=None if target_url is None else states.probe_texts,
            drafter_bytes=_bytes(drafter_memory, None if placed is None else placed.drafter_bytes),
            context_bytes=parse_bytes(context_memory),
            batch_bytes=_bytes(batch_memory, None if placed is None else placed.batch_bytes),
        )
        for name, path, options in drafters:
            card = engine.load(name, Path(path), options, roots=None)
            typer.echo(
                f"loaded {name}: {card.family} ({card.format}), {card.layout}, block {card.block_size}, "
                f"taps {card.taps}, {card.memory_bytes / 1e6:.1f} MB",
                err=True,
            )
            for warning in card.warnings:
                typer.echo(f"warning: {name}: {warning}", err=True)
        service = DrafterService(
            engine=engine,
            states=states,
            limits=settings.limits,
            version=version("tauscope"),
            roots=tuple(root or ()),
            access=Access(keyring=Keyring(keys)),
            drain_s=settings.drain_s,
            gpu_memory=gpu_meter(where, cap_bytes=gpu_bytes),
            tracing=active_tracing(),
        )
        url = url_of(listener, tls=tls_cert is not None)
        serve(
            create_app(service),
            settings,
            listener=listener,
            started=lambda: typer.echo(f"tauscope-drafter is ready at {url}", err=True),
        )


def _bytes(given: str | None, placed: int | None) -> int | None:
    """What the user says, else what follows from `--gpu-memory`, else the default."""
    return placed if given is None else parse_bytes(given)


def _connection(target_url: str | None, environ: Mapping[str, str]) -> "Connection | None":
    from tauscope_wire.connection import Connection

    return (
        None
        if target_url is None
        else Connection(target_url, key=environ.get(TARGET_KEY_VARIABLE), tracing=active_tracing())
    )
