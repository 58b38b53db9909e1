"""`tauscope references`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tauscope_client.addresses import DEFAULT_DRAFTER_URL, Addresses
from tauscope_client.commands.eval import DEFAULT_MAX_NEW_TOKENS, DEFAULT_TAIL_TOKENS, repeats_of
from tauscope_client.commands.options import (
    TARGET_DEFAULT,
    DeadlineS,
    FlushReferences,
    Key,
    SampleSeed,
    SampleTopK,
    SampleTopP,
    TargetUrl,
    Temperature,
    TemplateKwargs,
    parse_template_kwargs,
    text_sampling,
)
from tauscope_client.exit_codes import EXIT_CODES_HELP, ExitCode
from tauscope_client.freezing import freeze
from tauscope_client.prompts import find_prompts, load_prompts
from tauscope_client.references.choice import REFERENCE_HELP, parse_reference
from tauscope_client.references.collect import ReferencePlan
from tauscope_client.terminal import TerminalProgress, stdout_console

__all__ = ["references_command"]


def references_command(
    prompts: Annotated[
        str,
        typer.Argument(help="Prompts: JSONL (ours, ShareGPT, turns), JSON array, .txt, bundled:coding, bundled:mixed."),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; an unfinished one is continued.")],
    reference: Annotated[str, typer.Option("--reference", "-r", help=REFERENCE_HELP)] = "target",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of the answers.")] = DEFAULT_MAX_NEW_TOKENS,
    tail_tokens: Annotated[
        int, typer.Option(min=0, max=256, help="Greedy tokens fetched past the end, for the unclipped tau.")
    ] = DEFAULT_TAIL_TOKENS,
    reference_concurrency: Annotated[
        int, typer.Option(min=1, max=64, help="Answers in flight; above 1 greedy text may change under load.")
    ] = 1,
    check_references: Annotated[
        int | None, typer.Option(min=0, help="References to ask for twice again. [default: 2 of another server]")
    ] = None,
    flush_references: FlushReferences = False,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turns of a conversation. [default: all]")] = None,
    template_kwargs: TemplateKwargs = "{}",
    temperature: Temperature = None,
    sample_top_k: SampleTopK = 0,
    sample_top_p: SampleTopP = 1.0,
    seed: SampleSeed = 0,
    reference_model: Annotated[str | None, typer.Option(help="Model name at a server that serves several.")] = None,
    reference_key: Annotated[
        str | None, typer.Option(envvar="TAUSCOPE_REFERENCE_KEY", help="API key of the reference server.")
    ] = None,
    deadline_s: DeadlineS = None,
    target: TargetUrl = TARGET_DEFAULT,
    key: Key = None,
) -> None:
    """Freeze a reference set that other runs reuse with --reference file=PATH."""
    file = load_prompts(find_prompts(prompts))
    choice = parse_reference(reference, model=reference_model, key=reference_key)
    plan = ReferencePlan(
        max_new_tokens=max_new_tokens,
        tail_tokens=tail_tokens,
        template_kwargs=parse_template_kwargs(template_kwargs),
        max_turns=max_turns,
        concurrency=reference_concurrency,
    )
    with Addresses(target, DEFAULT_DRAFTER_URL, key).open_target() as client:
        client.info()
        with choice.open(client, deadline_s=deadline_s) as source, TerminalProgress() as progress:
            sampling = text_sampling(source, temperature, sample_top_k, sample_top_p, seed)
            frozen = freeze(
                file,
                replace(plan, sampling=sampling),
                out,
                target=client,
                source=source,
                progress=progress,
                num_repeats=repeats_of(source, check_references, sampling),
                may_flush=flush_references,
            )
    tokens = sum(len(one.response_ids) for one in frozen.references)
    console = stdout_console()
    console.print(f"{out}: {len(frozen.references)} references, {tokens} response tokens", markup=False, soft_wrap=True)
    if frozen.stability is not None:
        caution = frozen.stability.caution()
        said = f"careful: {caution}" if caution else frozen.stability.words
        console.print(said, markup=False, soft_wrap=True)
    if frozen.failures:
        raise typer.Exit(ExitCode.INCOMPLETE)


references_command.__doc__ = f"{references_command.__doc__}\n\n{EXIT_CODES_HELP}"
